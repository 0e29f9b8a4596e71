"""What several test folders share: making records and observations, real captured evidence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cgroups import memory_cgroup

CAPTURES = Path(__file__).parent / "captures"


@pytest.fixture
def captures() -> Path:
    return CAPTURES


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A real memory cgroup of 48 MiB."""
    with memory_cgroup(48 << 20) as directory:
        yield directory
