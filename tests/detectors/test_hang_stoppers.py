"""Who may have stopped a rank: a process whose script stops others; silence of it where no rank is stopped."""

from __future__ import annotations

import pytest

from diag.model import Finding
from diag.model.observations import Block, ProgramRead, Statement
from tests.detectors.test_hang import steady
from tests.facts import TRAIN, pid_of, stack, tree

CONDITION = Block(43, 46, "if", "if mb > a.high:")
STOPS = Statement("stops", "/app/guard.py", 44, "", "os.kill(pid, signal.SIGSTOP)", around=(CONDITION,))
GUARD = ProgramRead(1, 77, (), (STOPS,), "python guard.py --high 900")
WAITS = (*TRAIN, "all_reduce torch/distributed/distributed_c10d.py:2501")


def told(read: ProgramRead | None, state: str = "T") -> Finding:
    story = steady()
    for at in range(30):
        story.tell(tree(0, story.now), stack(0, story.now, WAITS))
        story.tell(tree(1, story.now, state=state), stack(1, story.now, TRAIN))
        if at == 2 and read is not None:
            story.tell(read)
        story.wait(2.0)
    return story.hang()


def test_process_whose_script_stops_others_is_named_where_a_rank_is_stopped() -> None:
    hang = told(GUARD)

    assert (hang.cause, hang.ranks) == ("sigstop", (1,))
    assert (
        "pid 77 (`python guard.py --high 900`) stops processes by `os.kill(pid, signal.SIGSTOP)`"
        in hang.summary
    )
    assert "under `if mb > a.high:` (" in hang.summary
    assert hang.advice.startswith("By its text the process shown stops others")
    assert f"kill -CONT {pid_of(1)}" in hang.advice


@pytest.mark.parametrize(("read", "state"), [(None, "T"), (GUARD, "S")])
def test_nobody_is_named_where_no_script_stops_others_or_no_rank_is_stopped(
    read: ProgramRead | None, state: str
) -> None:
    hang = told(read, state)

    assert "stops processes by" not in hang.summary and "stops others" not in hang.advice
