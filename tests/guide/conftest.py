"""What tests of the guides share: the short folder of live tests."""

from __future__ import annotations

from tests.live.conftest import tmp_path

__all__ = ["tmp_path"]
