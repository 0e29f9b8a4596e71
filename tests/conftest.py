"""What several test folders share: making records and observations, real captured evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

CAPTURES = Path(__file__).parent / "captures"


@pytest.fixture
def captures() -> Path:
    return CAPTURES
