"""`diag run` around a scenario's job, inside the machine: until what it must find is found, and long enough
to find more."""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.vm.guest.run import Run
from tests.vm.guest.shell import as_user, until
from tests.vm.rdma.guest import network
from tests.vm.rdma.scenarios import Scenario

# Deadlines, for a machine that others use too: under emulation diag's start takes 5 s of CPU by itself.
_START_SECONDS = 240.0
_FIND_SECONDS = 120.0
# After a dump, in which everything was read at least once: ports are read again (every 10 s), and all checks
# are made.
_QUIET_SECONDS = 12.0


def watch(scenario: Scenario) -> dict[str, Any]:
    """{"changes": lines of findings.jsonl, "terminal": what was printed, "dump": of `diag dump`, "exit":
    code, "problem": what did not come in time, "run": the run directory (tar, base64)}."""
    if scenario.down == "before":
        network.set_link(0, up=False)
    job = [sys.executable, "-m", "tests.vm.rdma.guest.job", scenario.name]
    run = Run(scenario.name, job, as_user(scenario.user, None), scenario.user)
    problem, dump = "", {}
    try:
        until(lambda: _trains(run), _START_SECONDS, "two ranks that train")
        until(
            lambda: run.job().get("ranks_seen") == len(scenario.ranks),
            _START_SECONDS,
            "both ranks in diag's page",
        )
        dump = run.dump()
        if scenario.down == "during":
            network.set_link(0, up=False)
        quiet = time.monotonic() + _QUIET_SECONDS
        if scenario.wanted:
            until(
                lambda: {wanted.id for wanted in scenario.wanted} <= run.found(),
                _FIND_SECONDS,
                "what must be found",
            )
        until(lambda: time.monotonic() > quiet, _QUIET_SECONDS + 5, "time")
    except (TimeoutError, RuntimeError) as error:
        problem = str(error)
    problem += run.end()
    if scenario.down:
        network.set_link(0, up=True)
    return {"changes": run.changes(), "terminal": _talk(run), "dump": dump, "exit": run.process.returncode,
            "problem": problem, "run": run.packed()}  # fmt: skip


def _trains(run: Run) -> bool:
    return all(f"[rank{rank}] iteration" in run.text() for rank in (0, 1))


def _talk(run: Run) -> str:
    """What is on the terminal but steps."""
    return "".join(line for line in run.text().splitlines(keepends=True) if "] iteration " not in line)[
        -5000:
    ]
