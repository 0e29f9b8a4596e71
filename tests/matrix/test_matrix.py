"""Every fault on the bundled job under `diag run` with default settings: found, with the right culprit, in
time.

`make matrix` runs it and prints the table. Detection is measured from the moment the fault announced itself,
or from the last progress before it, whichever is later for the job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.liverun import JOB, LiveRun, live_run

pytest.importorskip(
    "megatron.core", reason="the bundled job needs requirements/job.txt (make test installs it)"
)
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(420)]


_HANGS = ("hang", "held-up")  # how long it lasts, is another question


@dataclass(frozen=True)
class Case:
    """`finding` None: the run must end by itself with exit code 0 and nothing of level warning found but
    `may` (of `ranks`)."""

    name: str
    fault: str
    finding: str | None
    klass: str = ""
    ranks: tuple[int, ...] = (1,)
    within: float = 60.0
    arguments: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    cause: str = ""


FOUND = (
    Case("data-hang, first batch", "data-hang", "hang", "data_loading"),
    Case("data-hang, steady", "data-hang:step=20", "hang", "data_loading", within=30),
    Case("data-worker-killed", "data-worker-killed:step=10", "rank-died"),
    Case("lock-deadlock", "lock-deadlock:step=10", "hang", "lock_deadlock", within=30),
    Case("gil-held", "gil-held:step=10", "hang", "gil_deadlock", within=30),
    Case("skip-collective", "skip-collective:step=10", "hang", "peer_not_joined", within=30),
    Case("sigstop", "sigstop:step=10", "hang", "stopped", within=30),
    Case("rank-killed", "rank-killed:step=10", "rank-died"),
    Case("rank-crash", "rank-crash:step=10", "rank-died"),
    Case("save-stall", "save-stall:step=5", "hang", "checkpoint_io", arguments=("--save-steps", "6")),
    Case("disk-full", "disk-full:step=5", "disk-full", arguments=("--save-steps", "3")),
    Case(
        "save-killed",
        "save-killed:step=5",
        "checkpoint-corrupt",
        "left_behind",
        ranks=(),
        arguments=("--save-steps", "3"),
    ),
    Case("shm-full", "shm-full:step=10", "shm-too-small"),
    Case("host-oom", "host-oom:step=5", "host-oom", arguments=("--save-steps", "6"), cause="cgroup_limit"),
    Case("worker-oom", "worker-oom:step=10", "host-oom", cause="cgroup_limit"),
    Case(
        "parent-oom",
        "parent-oom:step=5",
        "host-oom",
        arguments=("--save-steps", "6"),
        cause="parent_cgroup_limit",
    ),
    Case("rlimit-as", "rlimit-as:step=5", "host-oom", arguments=("--save-steps", "6"), cause="rlimit_as"),
    Case("pids-limit", "pids-limit:step=10", "pids-limit", cause="cgroup_pids"),
    Case("fd-exhaust", "fd-exhaust:step=10", "fd-limit"),
    Case("exception-then-teardown", "exception-then-teardown:step=10", "hang", "teardown", within=30),
    Case("rendezvous", "rendezvous", "hang", "rendezvous"),
    Case("nan-loss", "nan-loss:step=10", "loss-nan", ranks=(), within=10),
    Case(
        "data-hang, TP2 PP2 EP2",
        "data-hang:rank=2,step=6",
        "hang",
        "data_loading",
        (2,),
        arguments=("--nproc", "4", "--tp", "2", "--pp", "2", "--ep", "2"),
    ),
)
SILENT = (
    Case("healthy 1", "", None),
    Case("healthy 2, saves", "", None, arguments=("--save-steps", "10")),
    Case(
        "healthy 3, TP2 PP2 EP2",
        "",
        None,
        arguments=("--nproc", "4", "--tp", "2", "--pp", "2", "--ep", "2", "--iters", "20"),
    ),
    # a true finding, which needs 12 samples of each rank: more than such a short run has where they are
    # sparse
    Case("slow-rank", "slow-rank:step=5,factor=6", None, may=("straggler",)),
    Case("preprocess-on-rank-0", "preprocess-on-rank-0:seconds=75", None),
    Case("long-compile", "long-compile:seconds=75", None),
    Case("slow-save", "slow-save:step=5,seconds=75", None, arguments=("--save-steps", "6")),
)


# The real `megatron rlhf`, whose asynchronous save writes its tracker before it begins and tells its end
# steps later.
ASYNCHRONOUS = [
    sys.executable,
    "-m",
    "diag_job.megatron",
    "--nproc",
    "2",
    "--iters",
    "12",
    "--save-steps",
    "4",
]


def note(case: Case, **facts: Any) -> None:
    """A row of the table that the terminal summary prints; one file for all workers."""
    path = os.environ.get("DIAG_MATRIX_FILE")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps({"case": case.name, "expected": case.finding or "nothing", **facts}) + "\n")


def start(case: Case, tmp_path: Path) -> Any:
    iterations = () if "--iters" in case.arguments else ("--iters", "40" if case.finding is None else "400")
    command = [*JOB, *iterations, "--output-dir", str(tmp_path / "out"), *case.arguments]
    if case.fault:
        command += ["--fault", case.fault]
    return live_run(tmp_path, command)


@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_fault_is_found_with_its_culprit_in_time(case: Case, tmp_path: Path):
    with start(case, tmp_path) as run:
        run.until(run.struck_at, 150)
        struck = run.struck_at()
        assert struck is not None
        try:
            change = run.until(lambda: wanted(run, case), case.within + 30)
        except AssertionError:
            seen = [(c["finding"]["id"], c["finding"]["class"], c["finding"]["ranks"]) for c in run.changes()]
            note(case, found=str(seen), delay=None, ok=False)
            raise
        delay = max(0.0, change["at"] - max(struck, change["finding"]["since"]))
        wrong = [
            c["finding"] for c in run.changes() if c["finding"]["id"] in _HANGS and case.finding != "hang"
        ]
        ok = delay <= case.within and not wrong
        note(
            case,
            found=f"{change['finding']['id']} {change['finding']['class']}".strip(),
            ranks=change["finding"]["ranks"],
            delay=round(delay, 1),
            ok=ok,
            confidence=change["finding"]["confidence"],
        )

        assert delay <= case.within
        assert not wrong, wrong


def wanted(run: LiveRun, case: Case) -> dict[str, Any] | None:
    for change in run.changes():
        finding = change["finding"]
        same = (
            (finding["id"] in _HANGS if case.finding == "hang" else finding["id"] == case.finding)
            and finding["class"] == case.klass
            and change["change"] != "resolved"
        )
        same &= case.cause in ("", finding["cause"])
        if same and finding["severity"] != "info" and (tuple(finding["ranks"]) == case.ranks):
            return change
    return None


@pytest.mark.parametrize("case", SILENT, ids=lambda case: case.name)
def test_benign_run_raises_nothing(case: Case, tmp_path: Path):
    began = time.monotonic()
    with start(case, tmp_path) as run:
        code = run.wait(360)
        said = [
            f
            for c in run.changes()
            if (f := c["finding"])["severity"] != "info"
            and not (f["id"] in case.may and tuple(f["ranks"]) == case.ranks)
        ]
        struck = run.struck_at() is not None or not case.fault
        note(
            case,
            found=str([(f["id"], f["class"]) for f in said]) if said else "nothing",
            ranks=[],
            delay=None,
            ok=not said and code == 0 and struck,
            seconds=round(time.monotonic() - began),
        )

        assert struck, "the fault never struck: the test shows nothing"
        assert said == []
        assert code == 0, run.text[-3000:]


@pytest.mark.parametrize("fault", ["", "save-killed:step=5"])
def test_asynchronous_save_of_ms_swift_is_broken_only_when_its_rank_was_killed_in_it(
    fault: str, tmp_path: Path
):
    pytest.importorskip(
        "swift.megatron", reason="the real job needs requirements/job.txt (make test installs it)"
    )
    case = Case(f"asynchronous save {fault}".strip(), fault, "checkpoint-corrupt" if fault else None)
    command = [
        *ASYNCHRONOUS,
        "--output-dir",
        str(tmp_path / "out"),
        *(["--fault", fault] if fault else []),
        "--",
        "--async_save",
        "true",
    ]
    with live_run(tmp_path, command) as run:
        code = run.wait(360)
        said = {
            f["id"]: f["summary"]
            for c in run.changes()
            if (f := c["finding"])["id"].startswith("checkpoint-")
        }
        ok = set(said) == ({"checkpoint-corrupt"} if fault else set())
        note(case, found=str(sorted(said)), ranks=[], delay=None, ok=ok and (code == 0) == (not fault))

        assert ok, run.text[-3000:]
        assert (code == 0) == (not fault)
        if fault:
            assert "checkpoint-8 is not whole (missing iter_0000008/.metadata" in said["checkpoint-corrupt"]
            # A slow machine begins the second save before the first has its `.metadata`: then none is whole.
            before = next((tmp_path / "out").glob("v*/checkpoint-4/iter_0000004"))
            whole = (before / "metadata.json").exists()
            told = (
                "the last whole one is checkpoint-4"
                if whole
                else "checkpoint-4 beside it is not whole either"
            )
            assert told in said["checkpoint-corrupt"]
