"""Calls that do not fit together: who has made its loop's call more often, or less, than it has been through the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import CallHistory
from diag.model.observations.collectives import CallSequence
from tests.core.test_call_order import Call, dump_of
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.detectors.test_hang_variables import held
from tests.facts import pid_of
from tests.programs import line_of

TEXT = """
def backward(model, ids):
    try:
        loss = model(ids)
    except MemoryError:
        return backward(model, ids[:4]) + backward(model, ids[4:])
    loss.backward()  # backward


def train(loader):
    for step in range(1, 200):
        if not len(ids):
            continue
        backward(model, ids)  # steps
        if step % 20 == 0:
            all_gather_object(rows)  # logs


for epoch in range(3):
    train([])  # again

train([])  # top
"""
GRADIENTS: Call = ("0", "all_reduce", 26452)
LOGS: Call = ("0", "all_gather", 1)
SETUP: tuple[Call, ...] = (LOGS, ("0", "broadcast", 26452))


def calls_of(steps: int, last: Call) -> tuple[Call, ...]:
    """After so many gradients, logged after every twenty of them."""
    made = [call for step in range(1, steps + 1) for call in (GRADIENTS, *([LOGS] * (step % 20 == 0)))]
    return (*SETUP, *(made[:-1] if made[-1] == LOGS else made), last)


def found(
    tmp_path: Path,
    calls: Sequence[Sequence[Call]],
    steps: Sequence[str],
    top: str = "top",
    *,
    whole: bool = True,
) -> Finding:
    """All but the last rank are in the log, and that one is in its backward."""
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    at = {mark: f"{path}:{line_of(TEXT, mark)}" for mark in ("steps", "logs", "backward", "again", "top")}
    first, last = f"<module> {at[top]}", len(calls) - 1
    stacks: dict[int, Sequence[str]] = {rank: [first, f"train {at['logs']}", REDUCE] for rank in range(last)}
    inside = "_engine_run_backward torch/autograd/graph.py:869"
    stacks[last] = [first, f"train {at['steps']}", f"backward {at['backward']}", inside]
    story = steady(world=len(calls))
    for _ in range(3):
        story.still(20.0, stacks)
        for rank, made in enumerate(calls):
            read(story, path, rank, stacks[rank])
            held(story, rank, stacks[rank], {"train": {"step": steps[rank]}, "<module>": {"epoch": "0"}})
            dump = replace(dump_of(rank, made), emitted=story.now, pid=pid_of(rank))
            entries = dump.entries if whole else dump.entries[1:]
            numbers = tuple((entry.seq, at) for at, entry in enumerate(entries))
            group = CallSequence("gloo", "0", "default_pg", (), entries, numbers)
            dump = replace(dump, entries=dump.entries[-2:])  # of which no call is due
            story.tell(dump, CallHistory(rank, story.now, pid_of(rank), ("gloo",), (group,)))
    story.still(20.0, stacks)
    return story.the("hang")


LATE = [calls_of(60, LOGS), calls_of(60, GRADIENTS)]


def test_rank_that_has_made_a_call_too_many_is_to_blame_and_not_who_has_made_one_each_round(
    tmp_path: Path,
) -> None:
    hang = found(tmp_path, LATE, ("60", "60"))

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("call_too_often", (1,), (0,))
    assert (
        f"in round 60 of `for step in range(1, 200):` ({tmp_path}/train.py:11) rank 1 has begun all_reduce [26452] 61 "
        "times, and rank 0 has made it 60 times and come further; backward takes another way at `except MemoryError:` "
        f"({tmp_path}/train.py:5) of `loss = model(ids)`"
    ) in hang.summary
    assert "is under" not in hang.summary and "under no_sync" in hang.advice


def test_rank_that_has_made_a_call_too_few_is_to_blame_with_what_leads_past_it(tmp_path: Path) -> None:
    hang = found(tmp_path, [calls_of(19, LOGS), calls_of(19, GRADIENTS)], ("20", "20"))

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("calls_differ", (0,), (1,))
    assert "rank 1 has begun all_reduce [26452] 20 times, and rank 0 has made it 19 times" in hang.summary


@pytest.mark.parametrize(
    ("calls", "steps", "top", "whole"),
    [
        (LATE, ("60", "59"), "top", True),
        (LATE, ("58", "58"), "top", True),
        (LATE, ("60", "60"), "again", True),
        (LATE, ("60", "60"), "top", False),
    ],
    ids=[
        "in two rounds",
        "calls that are no multiple of the rounds",
        "a loop around it",
        "not all calls known",
    ],
)
def test_rank_is_not_blamed_where_the_counts_do_not_tell(
    tmp_path: Path, calls: Sequence[Sequence[Call]], steps: Sequence[str], top: str, whole: bool
) -> None:
    hang = found(tmp_path, calls, steps, top, whole=whole)

    assert (hang.cause, hang.ranks) == ("calls_differ", (0, 1))
    assert "begun" not in hang.summary
