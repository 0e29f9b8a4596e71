"""Ranks that wait to send to each other, in loops that have another number of rounds on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import Exchange
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.detectors.test_hang_variables import held
from tests.facts import stack, tree
from tests.programs import line_of

TEXT = """
def run(stage, n_micro, rank):
    kept = []
    for m in range(n_micro):
        send(stage)  # forward
        kept.append(m)
    for one in kept:
        send(one)  # backward


run(0, 4, 0)  # top
"""
SEND = "send torch/distributed/distributed_c10d.py:2753"
# The last of three stages is in its backward pass, and that the first one waits for the second tells nothing of it.
CALLS = {0: Exchange(True, 1), 1: Exchange(True, 2), 2: Exchange(True, 1)}

Values = Mapping[int, dict[str, str]]


def told(path: Path, values: Values, text: str = TEXT) -> Finding:
    """With the variables of `run` on each rank."""
    script = path / "train.py"
    script.write_text(text)
    story = steady(len(CALLS))
    for at in range(30):
        for rank, call in CALLS.items():
            mark = "backward" if rank == 2 else "forward"
            lines = [
                f"<module> {script}:{line_of(text, 'top')}", f"run {script}:{line_of(text, mark)}", SEND,
            ]  # fmt: skip
            sample = stack(rank, story.now, lines)
            main = replace(sample.threads[0], exchange=call)
            story.tell(replace(tree(rank, story.now), switches=100), replace(sample, threads=(main,)))
            if at == 10:
                read(story, script, rank, lines)
                held(story, rank, lines, {"run": values.get(rank, {})})
        story.wait(2.0)
    return story.the("hang")


def counts(*numbers: str) -> Values:
    return {rank: {"n_micro": number} for rank, number in enumerate(numbers)}


def test_rank_with_another_number_of_rounds_than_all_others_is_named(tmp_path: Path) -> None:
    hang = told(tmp_path, counts("4", "4", "2"))

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("messages_do_not_match", (2,), (0, 1))
    assert hang.confidence.value == "medium"
    assert "`for m in range(n_micro):` (" in hang.summary
    assert "4 on ranks 0-1" in hang.summary and "2 rounds on rank 2" in hang.summary
    assert "Rank 2 has exchanged fewer messages, or more, than its peers expect" in hang.advice


@pytest.mark.parametrize(
    "values",
    [
        counts("4", "4", "4"),
        counts("4", "4"),  # of one it is not known
        {1: {"n_micro": "4"}, 2: {"n_micro": "2"}},  # nor who is alone with its own
        counts("2", "1", "3"),  # each has its own
        counts("1", "1", "0"),  # a warm-up that is capped at one message
        counts("2", "4", "4"),  # whose number differs is in no circle
    ],
)
def test_where_numbers_of_rounds_tell_nothing_both_are_named(tmp_path: Path, values: Values) -> None:
    assert told(tmp_path, values).ranks == (1, 2)


@pytest.mark.parametrize("head", ["range(n_micro - rank + rank)", "range(len(n_micro))"])
def test_numbers_that_follow_from_the_rank_or_are_of_lists_blame_nobody(tmp_path: Path, head: str) -> None:
    text = TEXT.replace("range(n_micro)", head)
    lists = {"4": "[0, 1, 2, 3]", "2": "[0, 1]"} if "len" in head else {"4": "4", "2": "2"}
    values = {rank: {"n_micro": lists[n], "rank": str(rank)} for rank, n in enumerate(("4", "4", "2"))}

    assert told(tmp_path, values, text).ranks == (1, 2)


def test_what_a_rank_still_puts_together_is_not_counted(tmp_path: Path) -> None:
    """The loop is behind it."""
    values = {0: {"kept": "[0, 1, 2]"}, 1: {"kept": "[0, 1]"}, 2: {"kept": "[0, 1]"}}

    assert "rounds on" not in told(tmp_path, values).summary


def test_where_the_number_comes_from_is_told(tmp_path: Path) -> None:
    text = TEXT.replace("kept = []", "kept = []\n    n_micro = ramp(stage)")
    hang = told(tmp_path, counts("4", "4", "2"), text)

    assert "where n_micro is `ramp(stage)` (" in hang.summary
    assert "train.py:4); ranks 0-1 wait in send" in hang.summary
