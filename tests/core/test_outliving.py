"""What the command's processes wait for and have used, read once its ranks have ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from diag.agent.samplers.outliving import OutlivingSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.model.observations.waits import WaitsRead
from diag.sources import waits

SCRIPT = 'sleep 900 & read LINE; head -c 50000 /dev/zero | wc -c; echo "$LINE"; wait'


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["bash", "-c", SCRIPT], stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as one:
        yield one
        os.killpg(one.pid, signal.SIGKILL)


def look(sampler: OutlivingSampler, records: list[Record]) -> WaitsRead:
    sampler.sample()
    (read,) = waits.parse(records[-1])
    assert isinstance(read, WaitsRead)
    return read


def test_what_ended_children_have_used_counts_and_who_is_older_is_told(shell: subprocess.Popen[str]) -> None:
    records: list[Record] = []
    sampler = OutlivingSampler(Reporter(records.append, "node-0"), lambda: shell.pid)
    before = look(sampler, records)
    assert shell.stdin is not None and shell.stdout is not None
    shell.stdin.write("go\n")
    shell.stdin.flush()
    while shell.stdout.readline() != "go\n":
        pass
    after = look(sampler, records)

    assert before.rank is None and before.pid == shell.pid
    assert before.spent is not None and after.spent is not None
    assert after.spent.chars - before.spent.chars > 100_000  # what head wrote and wc read
    assert after.spent.faults > before.spent.faults
    ages = [one.age_seconds for one in after.processes]
    assert len(ages) == 2 and all(age is not None and 0.0 < age < 600.0 for age in ages)
    assert after.processes[0].threads[0].wait.kind == "child"


def test_nothing_is_read_while_a_rank_lives() -> None:
    records: list[Record] = []
    OutlivingSampler(Reporter(records.append, "node-0"), lambda: None).sample()

    assert records == []
