"""What all of diag's processes take beside ranks that sleep: memory as PSS (what they share counts once), CPU by the
scheduler's own clock, and how often they wake a core."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .runs import Diag, NotReady, processes, under_diag, until
from .stats import judge
from .table import Row, percent

__all__ = ["Use", "rows", "use_of"]

_GOALS = {1: 70.0, 8: 100.0}  # MB of PSS, ours
_CPU = 0.003
_SETTLE_SECONDS = 25.0
_JOB = """
import os, subprocess, sys, time
if "RANK" in os.environ:
    time.sleep(1000)
ranks = sys.argv[1]
env = {**os.environ, "WORLD_SIZE": ranks}
started = [subprocess.Popen([sys.executable, __file__], env={**env, "RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(int(ranks))]
for process in started:
    process.wait()
"""


@dataclass(frozen=True, slots=True)
class Use:
    """Of a process since its start: CPU seconds, and how often its threads went to sleep; and its PSS now, in MB."""

    cpu: float
    sleeps: int
    pss: float


def use_of(pid: int, proc: Path = Path("/proc")) -> Use:
    """Raises OSError when it is gone. A thread that has ended is not in it."""
    cpu, sleeps = 0.0, 0
    for task in (proc / str(pid) / "task").iterdir():
        cpu += int((task / "schedstat").read_text().split()[0]) / 1e9
        sleeps += _number("voluntary_ctxt_switches", (task / "status").read_text())
    return Use(cpu, sleeps, _number("Pss", (proc / str(pid) / "smaps_rollup").read_text()) * 1024 / 1e6)


def _number(name: str, text: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def rows(ranks: int, seconds: float, say: Callable[[str], None]) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        job = Path(name) / "asleep.py"
        job.write_text(_JOB)
        with under_diag([sys.executable, str(job), str(ranks)], Path(name)) as run:

            def complete() -> Diag | None:
                with contextlib.suppress(NotReady, KeyError):
                    found = processes(run)
                    return found if len(found.sidecars) == ranks else None
                return None

            diag = until(complete, 120, "each rank has its sidecar")
            assert diag is not None
            pids = (diag.hub, *diag.sidecars, *diag.others)
            say(f"{ranks} ranks asleep: settling {_SETTLE_SECONDS:.0f} s, measuring {seconds:.0f} s")
            time.sleep(_SETTLE_SECONDS)
            began, before = time.monotonic(), {pid: use_of(pid) for pid in pids}
            time.sleep(seconds)
            after, took = {pid: use_of(pid) for pid in pids}, time.monotonic() - began
    cpu = sum(after[pid].cpu - before[pid].cpu for pid in pids) / took
    wakes = sum(after[pid].sleeps - before[pid].sleeps for pid in pids) / took
    pss, hub = sum(one.pss for one in after.values()), after[diag.hub].pss
    sidecar, of = (
        sum(after[pid].pss for pid in diag.sidecars) / ranks,
        f"{ranks} rank{'s' * (ranks > 1)} asleep",
    )
    goal = _GOALS.get(ranks, 0.0)
    return [
        Row(f"memory of all of diag (PSS), {of}", f"{pss:.0f} MB: hub {hub:.0f}, a sidecar {sidecar:.1f}", "", "",
            f"< {goal:.0f} MB" if goal else "", judge(pss, goal) if goal else "",
            {"diag": pss, "hub": hub, "sidecar": sidecar}, f"PSS, {ranks}"),
        Row(f"CPU of all of diag, {of}", percent(cpu), "", "", f"< {percent(_CPU, 1)}", judge(cpu, _CPU), {"diag": cpu},
            f"asleep CPU, {ranks}"),
        Row(f"wakeups of all of diag, {of}", f"{wakes:.0f} a second", values={"diag": wakes}, key=f"wakeups, {ranks}"),
    ]  # fmt: skip
