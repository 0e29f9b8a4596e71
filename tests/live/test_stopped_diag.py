"""diag's own processes stopped (SIGSTOP, a debugger, a freezer) and continued: the job does not notice, and
diag goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from tests.labs.bench.runs import Diag, NotReady, processes
from tests.liverun import LiveRun, live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
RANKS = [sys.executable, str(Path(__file__).parent / "ranks.py"), "work", "work"]  # steps of 50 ms
_STOPPED_STEPS = 160  # 8 s or more: a rank that is so long out of sight is under suspicion


def steps(run: LiveRun) -> int:
    """What the job has printed by now: its own file, which nobody relays while the hub is stopped."""
    assert run.run_dir is not None
    return (run.run_dir / "output.log").read_bytes().count(b" | loss: 1.0 |")


def _sidecars(run: LiveRun) -> Sequence[int]:
    try:
        return processes(run).sidecars
    except NotReady:
        return ()


def all_of(diag: Diag) -> Sequence[int]:
    return (diag.hub, *diag.sidecars)


def only_sidecars(diag: Diag) -> Sequence[int]:
    return diag.sidecars


def only_hub(diag: Diag) -> Sequence[int]:
    return (diag.hub,)


@pytest.mark.parametrize("which", [all_of, only_sidecars, only_hub])
def test_diag_that_was_stopped_goes_on_and_the_job_does_not_notice(which, tmp_path: Path) -> None:
    until = tmp_path / "until"
    with live_run(tmp_path, RANKS, env={"UNTIL": str(until), "DIAG_PROC_SECONDS": "0.5"}) as run:
        run.until(lambda: len(_sidecars(run)) == 2 and steps(run) > 20, 60)
        diag, before = processes(run), steps(run)

        for pid in which(diag):
            os.kill(pid, signal.SIGSTOP)
        run.until(lambda: steps(run) >= before + _STOPPED_STEPS, 90)
        for pid in which(diag):
            os.kill(pid, signal.SIGCONT)

        run.until(lambda: steps(run) >= before + _STOPPED_STEPS + 60, 60)
        assert processes(run) == diag
        until.touch()
        assert (run.wait(90), run.changes()) == (0, [])
        assert run.text.count(" | loss: 1.0 |") == steps(run)
        assert run.run_dir is not None
        told = [record.payload for record in JournalReader(segments(run.run_dir)) if record.source == "run"]
    assert not [
        payload for payload in told if payload.get("event") == "failed" and payload["source"] == "sidecar"
    ]
