"""The soak in short, and its judge over what leaks: a judge that cannot find fault would call anything flat."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from diag.model import Finding, NotChecked
from diag.model.observations import LogLine
from diag.state.view import JobView
from tests.labs.soak.day import Hour, soak_told
from tests.labs.soak.judge import HOUR, SHORT, judge_day, judge_live
from tests.labs.soak.live import Asking, Lived, Sampler, soak_live
from tests.labs.soak.sampling import Disk, Row, look_at, moments, read_rows

_ASKING = Asking(metrics=2.0, dump=8.0, top=12.0, listens=5.0, away=3.0)
_LIVED = Lived(35, 0, [], {"scrape": 1, "dump": 1, "top": 1, "listen": 1}, [], "")
_DISK = Disk(0, 0, 0, 0, 0, 0, 0, 0, 0.0)

_LEAKS = """
import os, sys, threading, time
kept, what = [], sys.argv[1]
while True:
    if what == "memory": kept.append(bytearray(os.urandom(1 << 16)))
    if what == "files": kept.append(open("/dev/null"))
    if what == "threads":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    time.sleep(0.02)
"""


@pytest.mark.live
def test_half_a_minute_beside_a_busy_node_is_flat_and_silent(tmp_path: Path) -> None:
    lived = soak_live(tmp_path, 35, every=1.0, asking=_ASKING, dense=True)

    rows, disks = read_rows(tmp_path / "processes.csv", Row), read_rows(tmp_path / "disk.csv", Disk)
    assert judge_live(rows, disks, read_rows(tmp_path / "samplers.csv", Sampler), lived, SHORT) == []
    assert {f"sidecar-{rank}" for rank in range(8)} <= {row.process for row in rows}
    assert "steps measured" in lived.terminal  # the job was a busy one, and understood


def test_a_told_hour_keeps_the_state_within_its_bounds_and_finds_nothing(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as own:  # its memory and CPU are no other test's
        outcome = own.submit(
            soak_told, tmp_path, 1.0, each=1 / 8, step_seconds=2.0, addresses=64, ranks=4
        ).result()

    rows = read_rows(tmp_path / "day.csv", Hour)
    assert judge_day(rows, outcome, 0.75, cpu=2.0) == []  # two rows: their CPU is noise up to a half
    assert rows[-1].records > 15_000


@pytest.mark.parametrize(
    "what, told", [("memory", "RSS grew"), ("files", "fds grew"), ("threads", "threads grew")]
)
def test_the_judge_names_a_process_that_leaks(what: str, told: str) -> None:
    leaking = subprocess.Popen([sys.executable, "-c", _LEAKS, what])
    sound = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    rows = []
    try:
        for at in moments(0.1, 3.0):
            rows += [
                row
                for name, one in (("hub", leaking), ("sidecar-0", sound))
                if (row := look_at(one.pid, at, name))
            ]
    finally:
        for one in (leaking, sound):
            one.kill()
            one.wait()
    limits = replace(SHORT, warm_up=0.5, window=0.8, hub_rss=2e6, rss=2e6)

    faults = judge_live(rows, [_DISK], [], _LIVED, limits)

    assert any(fault.startswith("hub") and told in fault for fault in faults)
    assert not any(fault.startswith("sidecar") for fault in faults)


def test_the_judge_names_cpu_false_alarms_refusals_budgets_and_slower_readings() -> None:
    def rows(cpu: Callable[[float], float]) -> list[Row]:
        moments = range(0, 3600, 10)
        return [
            Row(at, name, 10**8, 10**7, 30, 10, cpu(at)) for at in moments for name in ("hub", "sidecar-0")
        ]

    disks = [replace(_DISK, journal=300 << 20)]
    samplers = [Sampler(at, "proc", at, at * 0.001 if at < 3000 else at * 0.02) for at in range(0, 3600, 10)]
    lived = replace(_LIVED, findings=["hang: all wait"], refused=["dump: timed out"], exit_code=1)

    faults = judge_live(rows(lambda at: (at / 500) ** 2), disks, samplers, lived, HOUR)

    assert [fault.partition(" ")[0] for fault in faults] == [
        "hub:",
        "sidecar-0:",
        "a",
        "the",
        "false",
        "not",
        "exit",
    ]
    assert judge_live(rows(lambda at: at / 50), [_DISK], [], _LIVED, HOUR) == []


class _Keeps:
    """A detector that forgets nothing."""

    name = "keeps"
    listens = (LogLine,)

    def __init__(self) -> None:
        self.lines: list[str] = []

    def observe(self, at: float, fact: LogLine) -> None:
        self.lines.append(fact.text)

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return ()

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def test_the_judge_names_a_container_that_only_grows(tmp_path: Path) -> None:
    outcome = soak_told(tmp_path, 0.1, each=0.02, step_seconds=1.0, ranks=2, more=[_Keeps()])

    faults = judge_day(read_rows(tmp_path / "day.csv", Hour), outcome, 0.02)

    assert any(fault.startswith("detector keeps.lines grew from ") for fault in faults)
