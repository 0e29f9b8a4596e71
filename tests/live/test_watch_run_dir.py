"""`diag watch` leaves the run directory that `diag run` leaves: both beside the same job, with a real hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.liverun import DIAG, LiveRun, WatchedRun, live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]
RANKS = Path(__file__).parent / "ranks.py"
OF_THE_RELAY = {"output.log"}  # what CMD prints goes through `diag run` alone
AT_ITS_END = {"facts.json"}


class Watch(WatchedRun):
    """A `diag watch` of this process, with a run directory of its own."""

    def __init__(self, pid: int, tmp_path: Path) -> None:
        super().__init__(tmp_path / "watched", tmp_path / "watch.txt")
        argv = [*DIAG, "watch", "--pid", str(pid), "--port", "0", "--run-root", str(self.root)]
        with open(self.out, "wb") as file:
            self.process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT)


@contextlib.contextmanager
def both(tmp_path: Path, *modes: str, **env: str) -> Iterator[tuple[LiveRun, Watch]]:
    """A job that is watched by the `diag run` that started it and by a `diag watch`."""
    command = [sys.executable, str(RANKS), *modes]
    with live_run(tmp_path, command, "--no-inject", env=env) as run:  # a hook is in ranks that diag started
        watch = Watch(launcher(run).pid, tmp_path)
        try:
            yield run, watch
        finally:
            watch.process.kill()
            watch.process.wait(10)


def launcher(run: LiveRun) -> psutil.Process:
    run.run_json()
    run.until(lambda: ranks(run), 30)
    return next(one for one in jobs(run) if one.pid not in {rank.pid for rank in ranks(run)})


def jobs(run: LiveRun) -> list[psutil.Process]:
    found = []
    for process in run.tree():
        with contextlib.suppress(psutil.Error):
            if str(RANKS) in process.cmdline():
                found.append(process)
    return [one for one in found if "diag" not in one.cmdline()[1:3]]


def ranks(run: LiveRun) -> list[psutil.Process]:
    found = []
    for process in jobs(run):
        with contextlib.suppress(psutil.Error):
            if "RANK" in process.environ():
                found.append(process)
    return found


def sidecars(run: WatchedRun) -> int:
    """How many ranks this diag has found and watches."""
    count = 0
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            count += "diag.agent.sidecar" in process.cmdline()
    return count


def names(run: WatchedRun) -> set[str]:
    """Of what lies at the top of the run directory; journal segments by their kind."""
    assert run.run_dir is not None
    return {
        "journal-*.jsonl.gz" if path.name.startswith("journal-") else path.name
        for path in run.run_dir.iterdir()
    }


def stopped(run: WatchedRun) -> list[dict[str, Any]]:
    """Changes of the hang that a stopped rank makes."""
    return [
        change["finding"]
        for change in run.changes()
        if (change["finding"]["id"], change["finding"]["class"]) == ("hang", "stopped")
        and change["finding"]["severity"] == "critical"
    ]


def test_hang_is_in_findings_jsonl_of_a_watched_job_as_in_that_of_a_run(tmp_path: Path) -> None:
    with both(tmp_path, "work", "wait") as (run, watch):
        watch.until(lambda: len(watch.run_json().get("argv") or ()) > 1, 60)
        working = next(one for one in ranks(run) if one.environ()["RANK"] == "0")
        working.send_signal(signal.SIGSTOP)

        run.until(lambda: stopped(run), 90)
        watch.until(lambda: stopped(watch), 90)
        for one in (run, watch):  # the bundle that is kept then
            one.until(lambda one=one: "evidence" in one.run_json(), 60)

        assert names(run) - OF_THE_RELAY == names(watch)
        assert run.run_json().keys() == watch.run_json().keys()
        ours, theirs = stopped(run)[0], stopped(watch)[0]
        assert ours.keys() == theirs.keys()
        assert (ours["ranks"], ours["cause"]) == (theirs["ranks"], theirs["cause"]) and ours["ranks"] == [0]

        # when a person ends the watch, with the hang still there
        watch.process.send_signal(signal.SIGINT)
        watch.wait(30)

        assert names(run) - OF_THE_RELAY == names(watch) - AT_ITS_END
        said = watch.run_json()
        assert (said["ended"], said["returncode"], said["url"]) == (True, None, None)


def test_end_of_the_job_leaves_the_same_files(tmp_path: Path) -> None:
    with both(tmp_path, "work", "wait") as (run, watch):
        # a rank that dies before `diag watch` has found it is none that it can miss
        run.until(lambda: sidecars(run) == 2, 60)
        watch.until(lambda: sidecars(watch) == 2, 60)
        next(one for one in ranks(run) if one.environ()["RANK"] == "1").send_signal(signal.SIGKILL)
        run.until(lambda: run.opened("rank-died"), 60)
        watch.until(lambda: watch.opened("rank-died"), 60)
        for process in ranks(run):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        run.wait(60)
        watch.wait(60)

        assert names(run) - OF_THE_RELAY == names(watch)
        assert {"run.json", "findings.jsonl", "journal-*.jsonl.gz", "dumps", "stacks", "nccl"} <= names(watch)
        ours, theirs = run.run_json(), watch.run_json()
        assert (ours["ended"], theirs["ended"]) == (True, True)
        assert ours["returncode"] == 137 and theirs["returncode"] in (137, None)  # as the kernel tells it
        replayed = subprocess.run(
            [*DIAG, "replay", str(watch.run_dir), "--changes"],
            capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ),
        )  # fmt: skip
        assert [json.loads(line) for line in replayed.stdout.splitlines()] == watch.changes()
