"""`diag run` around a scenario's job, inside the machine: until the job has ended of it, or what must be
found is found."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from tests.vm.guest.run import Run
from tests.vm.guest.shell import until
from tests.vm.memory.guest import cgroups, host
from tests.vm.memory.guest.job import Signs
from tests.vm.memory.scenarios import Scenario

# Deadlines, for a machine that others use too: under emulation diag's start takes 5 s of CPU by itself.
_START_SECONDS = 400.0
_ACT_SECONDS = 300.0
_LOOKS = 10
_QUIET_SECONDS = (
    15.0  # after what a healthy job outlives: everything is read again (every 5 s), and all checks are made
)


def watch(scenario: Scenario) -> dict[str, Any]:
    """{"changes": lines of findings.jsonl, "terminal": what was printed, "exit": code, "problem": what did
    not come in time, "cgroups": what the kernel says of them at the end, "kernel": its log meanwhile,
    "oom_kills": of the machine meanwhile, "during": rank 1 of a job that goes on, looked at some times,
    "run": the run directory (tar, base64)}."""
    cgroups.make(scenario)
    kernel, kills = KernelLog(), cgroups.oom_kills()
    problem, during = "", []
    job = [sys.executable, "-m", "tests.vm.memory.guest.job", scenario.name]
    with host.changed(scenario.host):
        run = Run(
            scenario.name, job, cgroups.inside(cgroups.leaves(scenario)[0]) if scenario.diag_inside else ()
        )
        try:
            problem = _go(scenario, run)
        except (TimeoutError, RuntimeError) as error:
            problem = str(error)
        if not run.ended():
            during = _looks(run)
            problem += run.end()
    return {"changes": run.changes(), "terminal": _talk(run), "exit": run.process.returncode, "problem": problem,
            "cgroups": cgroups.told(scenario), "kernel": kernel.rest(), "oom_kills": cgroups.oom_kills() - kills,
            "during": during, "run": run.packed()}  # fmt: skip


def _go(scenario: Scenario, run: Run) -> str:
    signs = Signs(scenario)
    until(lambda: _both_read(run) or run.ended(), _START_SECONDS, "both ranks in diag's page")
    until(lambda: run.job().get("phase") == "steady" or run.ended(), _START_SECONDS, "steps")
    signs.give("save")
    until(lambda: _both_save(run) or run.ended(), _START_SECONDS, "a save that diag sees")
    if scenario.host:
        host.act(scenario.host)
    signs.give("act")
    if not scenario.goes_on:
        until(run.ended, _ACT_SECONDS, "the job's end")
        return ""
    if scenario.wanted:
        until(
            lambda: {wanted.id for wanted in scenario.wanted} <= run.found(),
            _ACT_SECONDS,
            "what must be found",
        )
        return ""
    until(lambda: signs.given("done"), _ACT_SECONDS, "the end of the save")
    quiet = time.monotonic() + _QUIET_SECONDS
    until(lambda: time.monotonic() > quiet, _QUIET_SECONDS + 5, "time")
    return ""


def _both_read(run: Run) -> bool:
    """Stack and memory: their sidecars are there."""
    read = [
        rank
        for rank in run.ranks()
        if rank["activity"] is not None and rank["rss_bytes"] is not None and rank["limits"]
    ]
    return len(read) == 2


def _both_save(run: Run) -> bool:
    """And all steps are read that were made before it: one read later would end the phase."""
    if run.job().get("iteration") != run.text().count("'iteration': "):
        return False
    saving = [rank for rank in run.ranks() if "checkpoint" in (rank["activity"], rank["context"])]
    return run.job().get("phase") == "ckpt_save" and len(saving) == 2


def _talk(run: Run) -> str:
    """What is on the terminal but steps."""
    return "".join(line for line in run.text().splitlines(keepends=True) if not line.startswith("{'loss'"))[
        -6000:
    ]


def _looks(run: Run) -> list[dict[str, str]]:
    """At rank 1, as /proc shows it: between two delays it runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if path.read_bytes().decode().split("\0")[-3:-1] != [run.root.name, "1"]:
                continue
            for _ in range(_LOOKS):
                found.append({name: (path.parent / name).read_text() for name in ("stat", "wchan")})
                time.sleep(0.3)
    return found


class KernelLog:
    """What the kernel says from now on."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._fd, 0, os.SEEK_END)

    def rest(self) -> list[str]:
        lines = []
        while True:
            try:
                lines.append(os.read(self._fd, 8192).decode("utf-8", "replace"))
            except BlockingIOError:
                break
            except OSError:  # EPIPE: some were overwritten
                continue
        os.close(self._fd)
        return [re.sub(r"\n .*", "", line).rstrip("\n") for line in lines]
