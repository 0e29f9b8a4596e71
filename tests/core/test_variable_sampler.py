"""When a rank's variables are read: only of a suspected job that wants it, and told again only where they changed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers.rank_context import RankContext
from diag.agent.samplers.rank_suspicion import WaitSampler
from diag.agent.samplers.rank_variables import VariableSampler, _Reported
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.sources.host.process_tree import read_process
from tests.inject.targets import Target, plain_env

CODE = """
def waits(path, timeout=None):
    print("ready", flush=True)
    sys.stdin.read()
waits("runs/ready")
"""
TASK = {"rank": 1, "stack_seconds": 30, "close_stack_seconds": 2, "proc_seconds": 2, "node_seconds": 5}


def program(code: str = CODE, before: str = "") -> str:
    return f"import sys\n{before}\nexec(compile({code!r}, '/srv/job/train.py', 'exec'))"


def beside(pid: int, *, wants: bool = True, closer: bool = True) -> tuple[VariableSampler, list[Record]]:
    records: list[Record] = []
    process = read_process(pid)
    assert process is not None
    task = {**TASK, "pid": pid, "start_ticks": process.ticks, "variables": wants}
    rank = RankContext(task, Reporter(records.append, "node-0", 1))
    rank.closer = closer
    return VariableSampler(rank), records


def test_variables_of_a_suspected_rank_are_told_once_while_they_stay_as_they_are() -> None:
    with Target(program(), plain_env()) as target:
        sampler, records = beside(target.pid)
        for _ in range(3):
            sampler.sample()

    [record] = records
    [thread] = record.payload["threads"]
    frame = next(frame for frame in thread["frames"] if frame["function"] == "waits")
    assert dict(frame["values"]) == {"path": "'runs/ready'", "timeout": "None"}
    assert sampler.period(0.0, 0.0) < 5.0


@pytest.mark.parametrize(("wants", "closer"), [(False, True), (True, False)])
def test_rank_that_is_not_suspected_or_a_user_who_does_not_want_it_is_left_alone(
    wants: bool, closer: bool
) -> None:
    with Target(program(), plain_env()) as target:
        sampler, records = beside(target.pid, wants=wants, closer=closer)
        sampler.sample()

    assert records == [] and sampler.period(0.0, 0.0) > 60.0


def test_process_that_may_not_be_read_is_not_checked_once() -> None:
    with Target(program(), plain_env()) as target:
        sampler, records = beside(target.pid)

        def denied(*_: Any, **__: Any) -> Any:
            return {"pid": target.pid, "failed": "denied", "detail": "Permission denied"}

        sampler._memory.variables = denied  # type: ignore[method-assign]
        sampler.sample()
        sampler.sample()

    assert [record.payload["failed"] for record in records] == ["denied"]


def test_variables_of_a_process_that_it_waits_for_are_told_too_unless_its_pid_is_another_ones_by_now() -> (
    None
):
    with Target(program(), plain_env()) as target, Target(program(), plain_env()) as other:
        sampler, records = beside(target.pid)
        found = read_process(other.pid)
        assert found is not None
        for ticks in (found.ticks - 1, found.ticks):
            sampler.rank.strangers = ((other.pid, ticks),)
            sampler.sample()

    assert [record.payload["pid"] for record in records] == [target.pid, other.pid]


def test_reading_costs_no_stop_and_little_time() -> None:
    with Target(program(), plain_env()) as target:
        sampler, _ = beside(target.pid)
        sampler.sample()
        began = time.thread_time()
        for _ in range(20):
            sampler.sample()
        assert (time.thread_time() - began) / 20 < 0.02
        assert "TracerPid:\t0\n" in Path(f"/proc/{target.pid}/status").read_text()


def rows(line: int, value: str, function: str = "f") -> list[dict[str, Any]]:
    frame = {
        "function": function,
        "file": "/srv/a.py",
        "line": line,
        "called": False,
        "values": [["n", value]],
    }
    return [{"id": 1, "name": "", "frames": [frame]}]


def test_values_that_change_all_the_time_are_told_more_and_more_seldom() -> None:
    told = _Reported()
    due = [second for second in range(300) if told.is_due(rows(1, f"{second}"), float(second))]

    assert due[:3] == [0, 8, 20] and len(due) < 12


def test_rank_that_is_elsewhere_is_told_soon() -> None:
    told = _Reported()
    for second in range(200):
        told.is_due(rows(1, f"{second}"), float(second))

    assert told.is_due(rows(2, "0", "g"), 300.0)
    assert not told.is_due(rows(2, "0", "g"), 400.0)


def test_children_and_others_that_the_rank_waits_for_are_read_first() -> None:
    with Target(program(), plain_env()) as target:
        sampler, _ = beside(target.pid)
    rank = sampler.rank
    rank.strangers, rank.awaited = ((70, 1), (71, 1), (72, 1)), frozenset((72, 12))
    children = [(10, "python"), (11, "pt_data_worker"), (12, "sh")]

    assert [pid for pid, _ in rank.by_turns(children)] == [12, 11, 10]
    assert rank.strangers_by_turns(2) == ((72, 1), (70, 1))


def test_whom_the_rank_waits_for_is_known_from_what_the_kernel_shows() -> None:
    code = "import subprocess, sys\nchild = subprocess.Popen(['sleep', '900'])\nprint('ready', flush=True)\nchild.wait()"
    with Target(code, plain_env()) as target:
        sampler, _ = beside(target.pid)
        waits = WaitSampler(sampler.rank)
        until = time.monotonic() + 20.0
        while len(sampler.rank.awaited) < 2 and time.monotonic() < until:
            assert not waits.read_waits(0.05)
        awaited = sampler.rank.awaited - {target.pid}
        commands = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in awaited]
        for pid in awaited:
            os.kill(pid, signal.SIGKILL)

    assert commands == ["sleep"]
