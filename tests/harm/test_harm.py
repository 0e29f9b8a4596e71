"""A short form of `python -m tests.harm`: the faults that have come to harm before or may most easily, one seed each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harm.faults import FAULTS
from tests.harm.trial import run_trial

SHORT = ("sidecar-killed", "hub-killed", "hub-no-files", "disk-full",
         "clock-jumps", "nvml-hangs", "pyspy-garbage", "half-requests")


@pytest.mark.live
@pytest.mark.parametrize("name", SHORT)
def test_job_is_as_it_is_without_diag_whatever_is_done_to_diag(name: str, tmp_path: Path) -> None:
    fault = next(one for one in FAULTS if one.name == name)
    if fault.needs_root and os.getuid():
        pytest.skip("mounts a disk of its own: needs root")

    outcome = run_trial(fault, 1, tmp_path)

    assert outcome.wrong == [], f"{outcome.did}: {outcome.wrong}"
