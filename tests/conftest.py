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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one group share a system (podman's storage, a mount, a job's port). pytest 9.2.0 leaves them in different workers
    without a word: xdist 3.8.0 marks a test's group in its node id, which that pytest does not let it change."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        if any(item.iter_markers("xdist_group")) and "@" not in item.nodeid:
            raise pytest.UsageError(f"pytest {pytest.__version__} and this pytest-xdist do not keep groups of tests together")
