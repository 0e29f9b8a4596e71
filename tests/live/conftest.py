"""What live tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, whatever the test's name: the run directory's path must leave room for the recorder's socket."""
    return tmp_path_factory.mktemp("t")
