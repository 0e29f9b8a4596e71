"""A short form of `python -m tests.labs.harm`: the faults that have come to harm before or may most easily, one
seed each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.harm.fault import missing
from tests.labs.harm.faults import FAULTS
from tests.labs.harm.trial import apart

SHORT = (
    "all-killed",
    "carrier-killed",
    "hub-killed",
    "hub-no-memory",
    "hub-no-processes",
    "pid-reused",
    "diag-removed",
    "disk-full",
    "disk-frozen",
    "output-rotated",
    "clocks-apart",
    "pyspy-garbage",
    "nodes-partitioned",
)


@pytest.mark.live
@pytest.mark.parametrize("name", SHORT)
def test_job_is_as_it_is_without_diag_whatever_is_done_to_diag(name: str, tmp_path: Path) -> None:
    if why := missing(FAULTS[name]):
        pytest.skip(why)

    outcome = apart(name, 1, tmp_path / "trial", most=4.0)

    assert outcome.wrong == [], f"{outcome.did}: {outcome.wrong}"
