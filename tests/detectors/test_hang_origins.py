"""What is said of where ranks that came apart have their values from: the statements that lead to what is not the same on all
of them; nothing where the values that were read are the same, or no statement tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model import Finding
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read, recorded
from tests.detectors.test_hang_variables import held
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
TEXT = """
import random


class Mix:
    def __init__(self):
        self.names = set(TASKS)


def keep(rows):
    return [row for row in rows if row > 3]


def thaw(model):
    if model.loss.item() < 1:
        all_reduce(model.grad)  # thaw


def run(model, count):
    for micro in range(count):
        all_reduce(micro)  # micro
    all_reduce(model)  # ran


def train(rows, rank, mix, model):
    mine = keep(rows[rank::2])
    done = 0
    for step in mine:
        if step is None:
            continue
        done += 1
        all_reduce(step)  # loop
        run(model, done)  # runs
        if step % 10 == 0:
            thaw(model)  # thaws
    for name in mix.names:
        all_reduce(name)  # names
    all_reduce(rows)  # after


def careful(rows, rank, skipped):
    mine = keep(rows[rank::2])
    for step in mine:
        try:
            all_reduce(step)  # tried
        except ValueError as error:
            skipped.append(error)
            continue
        log(step)  # logged
    all_reduce(rows)  # later


def newest(rank):
    for path in listing(rank):
        try:
            state = load(path)
        except Exception:
            continue
        return state


def resumes(rank):
    step = newest(rank)["step"]
    while step < 100:
        step += 1
        all_reduce(rank)  # steps
        if step % 50 == 0:
            all_reduce(rank)  # validates


train([], 0, Mix(), 0)  # top
"""
Values = dict[str, dict[str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def called(path: Path, marks: dict[int, tuple[str, ...]], values: dict[int, Values]) -> Finding:
    """Two readings of the recorder: the ranks made different calls."""
    text = path.read_text()
    top = f"<module> {path}:{line_of(text, 'top')}"
    functions = {
        "thaw": "thaw",
        "micro": "run",
        "ran": "run",
        **dict.fromkeys(("tried", "logged", "later"), "careful"),
        **dict.fromkeys(("steps", "validates"), "resumes"),
    }
    stacks = {
        rank: [top, *(f"{functions.get(one, 'train')} {path}:{line_of(text, one)}" for one in ones), REDUCE]
        for rank, ones in marks.items()
    }
    story = steady(world=len(stacks))
    for _ in range(2):
        story.still(20.0, stacks)
        for rank, stacked in stacks.items():
            read(story, path, rank, stacked)
            held(story, rank, stacked, values.get(rank, {}))
            recorded(story, rank, 7, "all_gather" if rank == 0 else "all_reduce", len(stacks))
    story.still(20.0, stacks)
    return story.the("hang")


def test_rank_that_left_the_loop_is_told_where_its_rounds_come_from(path: Path) -> None:
    found = called(path, {0: ("loop",), 1: ("after",)}, {})

    assert found.cause == "left_the_loop"
    at = line_of(TEXT, "loop")
    assert f"where mine is `keep(rows[rank::2])` ({path}:{at - 6}" in found.summary
    assert "it leaves out by `[row for row in rows if row > 3]`" in found.summary
    assert found.advice.startswith("Each rank leaves out what it finds in its own part")
    assert "Rank 1 left the loop shown" in found.advice


def test_rank_that_catches_what_its_round_raises_has_left_it_out(path: Path) -> None:
    found = called(path, {0: ("tried",), 1: ("later",)}, {})

    assert found.cause == "left_the_loop"
    assert "where a round that raises is left out (`except ValueError as error:` (" in found.summary
    assert found.advice.startswith("Whoever catches an exception around the calls that all ranks make")
    assert "where mine" not in found.summary


def test_values_that_differ_tell_more_than_an_exception_that_may_be_caught(path: Path) -> None:
    values = {rank: {"careful": {"mine": str([4, 5][rank:])}} for rank in (0, 1)}
    found = called(path, {0: ("tried",), 1: ("later",)}, values)

    assert "where mine is" in found.summary and "that raises" not in found.summary


def test_exception_around_another_statement_is_not_the_reason(path: Path) -> None:
    found = called(path, {0: ("logged",), 1: ("later",)}, {})

    assert "that raises" not in found.summary


def test_variable_that_is_the_same_on_all_ranks_is_not_the_reason(path: Path) -> None:
    mine = {"train": {"mine": "[4, 5]"}}
    found = called(path, {0: ("loop",), 1: ("after",)}, {0: mine, 1: mine})

    assert "where mine" not in found.summary and "Each rank leaves out" not in found.advice


def test_order_of_a_set_is_told_of_ranks_in_one_loop_over_it(path: Path) -> None:
    found = called(path, {0: ("names",), 1: ("names",)}, {})

    assert "at `for name in mix.names:`" in found.summary
    assert "where mix.names is `set(TASKS)`" in found.summary and "an order of its own" in found.summary
    assert "go over `sorted(...)` of it" in found.advice


def test_set_of_numbers_has_one_order_everywhere(path: Path) -> None:
    values = {0: {"train": {"mix.names": "{3, 5, ... 9 items}"}}}
    found = called(path, {0: ("names",), 1: ("names",)}, values)

    assert "set(TASKS)" not in found.summary and "sorted(...)" not in found.advice


def test_sorted_set_is_not_told(path: Path) -> None:
    path.write_text(TEXT.replace("in mix.names:", "in sorted(mix.names):"))
    found = called(path, {0: ("names",), 1: ("names",)}, {})

    assert "set(TASKS)" not in found.summary and "sorted(...)" not in found.advice


def test_argument_is_followed_to_what_the_caller_counts_under_a_condition(path: Path) -> None:
    values = {0: {"train": {"done": "4"}}, 1: {"train": {"done": "5"}}}
    found = called(path, {0: ("runs", "micro"), 1: ("runs", "ran")}, values)

    assert f"count is given at `run(model, done)` ({path}:{line_of(TEXT, 'runs')})" in found.summary
    assert (
        "done changes by `done += 1`" in found.summary and "gone past where `step is None`" in found.summary
    )
    assert "`done` was 5 on rank 1 and 4 on rank 0 when read" in found.summary
    assert found.advice.startswith("What is counted as shown")


def test_condition_below_one_that_asks_only_for_the_round_is_named(path: Path) -> None:
    """The other one, a round further, has been under that one as well."""
    values = {0: {"train": {"step": "20"}}, 1: {"train": {"step": "21"}}}
    text = TEXT.replace("for step in mine:", "for step in range(len(mine)):")
    path.write_text(text)
    found = called(path, {0: ("thaws", "thaw"), 1: ("loop",)}, values)

    assert "rank 0 is under `if model.loss.item() < 1:`" in found.summary
    assert "which rank 1 has passed by" in found.summary
    assert "decided by a number that each rank has from what it computed itself" in found.summary
    assert found.advice.startswith("Agree on that number before it decides anything")
    assert "step % 10" not in found.summary


def test_condition_on_the_round_is_named_where_the_other_has_not_come_to_it(path: Path) -> None:
    values = {0: {"train": {"step": "20"}}, 1: {"train": {"step": "19"}}}
    path.write_text(TEXT.replace("for step in mine:", "for step in range(len(mine)):"))
    found = called(path, {0: ("thaws", "thaw"), 1: ("loop",)}, values)

    assert "model.loss.item() < 1:`" not in found.summary


def test_way_round_a_loop_does_not_decide_when_it_is_left(path: Path) -> None:
    text = TEXT.replace("if step is None:", "if torch.isnan(step):")
    path.write_text(text)
    found = called(path, {0: ("loop",), 1: ("after",)}, {})

    assert found.cause == "left_the_loop"
    assert "isnan" not in found.summary.partition("where mine")[0] and "where mine is" in found.summary


def test_exception_that_left_a_rank_with_another_value_is_told_where_that_differs(path: Path) -> None:
    values = {rank: {"resumes": {"step": ["50", "40"][rank]}} for rank in (0, 1)}
    found = called(path, {0: ("validates",), 1: ("steps",)}, values)

    assert "state is `load(path)` (" in found.summary
    assert "): where that raises, `except Exception:` (" in found.summary
    assert ") goes on with something else" in found.summary
    assert "`step` was 50 on rank 0 and 40 on rank 1 when read" in found.summary
    assert found.advice.startswith("What raises on one rank alone leaves it with another value")


def test_exception_is_not_told_where_no_value_is_known_to_differ(path: Path) -> None:
    found = called(path, {0: ("validates",), 1: ("steps",)}, {})

    assert "goes on with something else" not in found.summary
