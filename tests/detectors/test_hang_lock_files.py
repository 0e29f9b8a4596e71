"""Files that ranks wait to go away: whose number is in them, and whether that process still is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import FrameVariables, Mark, Variable, VariablesRead
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.facts import TRAIN, pid_of
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
TEXT = """
def enter(path):
    while True:
        try:
            return open(path, "x")
        except FileExistsError:
            pause(0.5)  # taken


def ready(path):
    while not path.exists():
        pause(0.5)  # awaited
"""
LEFT = Mark("cache/code.lock", 123.0, 812, "gone", True)
RUNS = Mark("a.lock", 1.0, 7, "lives", False)


def told(tmp_path: Path, marks: Sequence[Mark], mark: str = "taken", value: str = "") -> Finding:
    path = tmp_path / "corpus.py"
    path.write_text(TEXT)
    function = "enter" if mark == "taken" else "ready"
    stacks = {0: [*TRAIN, REDUCE], 1: [*TRAIN, f"{function} {path}:{line_of(TEXT, mark)}"]}
    story = steady()
    story.still(30.0, stacks)
    read(story, path, 1, stacks[1])
    place = function, str(path), line_of(TEXT, mark)
    frame = FrameVariables(pid_of(1), *place, False, (Variable("path", value),))
    story.tell(VariablesRead(1, pid_of(1), (frame,), (), tuple(marks), time=story.now))
    thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
    story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
    story.still(30.0, stacks)
    return story.the("held-up")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("gone", "pid 812, and there is no such process any more"),
        ("replaced", "pid 812, which is another process since"),
    ],
)
def test_lock_file_of_a_process_that_has_ended_is_left_behind(tmp_path: Path, state: str, words: str) -> None:
    found = told(tmp_path, [RUNS, replace(LEFT, state=state)])

    assert (found.id, found.cause, found.ranks) == ("held-up", "lock_file_left_behind", (1,))
    assert (
        f"cache/code.lock (2 min 3 s old when read and older than this rank) has the number of {words}"
        in found.summary
    )
    assert "then delete the file" in found.advice


def test_lock_file_of_a_process_that_runs_is_not_said_to_be_left(tmp_path: Path) -> None:
    found = told(tmp_path, [Mark("cache/code.lock", 12.0, pid_of(0), "lives", False)])

    assert found.cause == "polls_for_lock_file"
    assert f"has the number of pid {pid_of(0)}, which is running (rank 0)" in found.summary


def test_number_whose_process_is_not_known_tells_nothing_of_it(tmp_path: Path) -> None:
    found = told(tmp_path, [Mark("cache/code.lock", 12.0, 812, "unknown", False)])

    assert found.cause == "polls_for_lock_file" and "no such process" not in found.summary


@pytest.mark.parametrize(("marks", "mark"), [((), "taken"), ((LEFT,), "awaited")])
def test_without_such_a_file_or_in_a_loop_that_waits_for_none_nothing_is_said(
    tmp_path: Path, marks: Sequence[Mark], mark: str
) -> None:
    found = told(tmp_path, marks, mark)

    assert found.cause == ("polls_for_lock_file" if mark == "taken" else "polls_for_file")
    assert "pid 812" not in found.summary and "(812)" not in found.summary


def test_lock_file_that_all_ranks_wait_for_is_told_from_where_the_first_of_them_waits(tmp_path: Path) -> None:
    """Nobody among them is to blame."""
    path = tmp_path / "corpus.py"
    path.write_text(TEXT)
    stacked = [*TRAIN, f"enter {path}:{line_of(TEXT, 'taken')}"]
    stacks: dict[int, Sequence[str]] = {0: stacked, 1: stacked}
    story = steady()
    story.still(30.0, stacks)
    for rank in stacks:
        read(story, path, rank, stacked)
        story.tell(VariablesRead(rank, pid_of(rank), (), (), (LEFT,)))
        thread = ThreadWait(pid_of(rank), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
        process = ProcessWaits(pid_of(rank), 1, "python", (thread,))
        story.tell(WaitsRead(rank, pid_of(rank), story.now, (process,)))
    story.still(200.0, stacks)
    found = story.the("held-up")

    assert (found.cause, found.ranks) == ("lock_file_left_behind", ())
    assert "has the number of pid 812, and there is no such process any more" in found.summary


@pytest.mark.parametrize(
    ("age", "value", "said"),
    [
        (900.0, "'cache/order.lock'", True),
        (20.0, "'cache/order.lock'", False),
        (900.0, "'cache/other.lock'", False),
    ],
)
def test_file_that_was_there_before_all_ranks_is_left_by_others(
    tmp_path: Path, age: float, value: str, *, said: bool
) -> None:
    """Ranks that run now may have made a younger one; and only the file that the function names is waited for."""
    found = told(tmp_path, [Mark("cache/order.lock", age, 0, "unnumbered", True)], value=value)

    assert found.cause == "polls_for_lock_file"
    assert ("cache/order.lock (15 min old when read) was there before any rank" in found.summary) == said
    assert found.advice.startswith("The file that is waited for to go away is none of a rank's") == said
