"""Where ranks' calls were first not the same, though it came to light in a later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import CallHistory, CallSequence, CollectiveEntry, Frame
from tests.core.test_call_order import Call, dump_of
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.detectors.test_hang_variables import held
from tests.facts import pid_of
from tests.programs import line_of

TEXT = """
def log_grad_norm(loss):
    all_reduce(norm)  # norm


def train(loader):
    for step in range(1, 200):
        loss.backward()  # backward
        if loss > 4:  # spike
            log_grad_norm(loss)  # spikes
        if step % 20 == 0:
            all_gather_object(rows)  # logs


train([])  # top
"""
REDUCES: Call = ("0", "all_reduce", 26452)
LOGS: Call = ("0", "all_gather", 1)
# Of a step's calls by their letters: what the recorder has, and the marks of the lines that lead to it.
KINDS = {
    "g": (REDUCES, (("<module>", "top"), ("train", "backward"))),
    "n": (REDUCES, (("<module>", "top"), ("train", "spikes"), ("log_grad_norm", "norm"))),
    "l": (LOGS, (("<module>", "top"), ("train", "logs"))),
}


def found(tmp_path: Path, *ranks: str, lines: bool = True, loss: str = "") -> Finding:
    """The last call of each is the one that it waits in."""
    path = tmp_path / "train.py"
    path.write_text(TEXT)

    def stack_of(letter: str) -> list[str]:
        return [f"{name} {path}:{line_of(TEXT, mark)}" for name, mark in KINDS[letter][1]]

    stacks: dict[int, Sequence[str]] = {
        rank: [*stack_of(made[-1]), REDUCE] for rank, made in enumerate(ranks)
    }
    story = steady(world=len(ranks))
    for _ in range(3):
        story.still(20.0, stacks)
        for rank, made in enumerate(ranks):
            read(story, path, rank, [*stack_of("g"), *stack_of("n"), *stack_of("l")])
            held(story, rank, stacks[rank], {"train": {"loss": loss}} if loss else {})
            dump = replace(
                dump_of(rank, [KINDS[one][0] for one in made]), emitted=story.now, pid=pid_of(rank)
            )
            story.tell(
                replace(dump, entries=dump.entries[-2:]),
                history(path, rank, story.now, dump.entries, made, lines=lines),
            )
    story.still(20.0, stacks)
    return story.the("hang")


def history(
    path: Path, rank: int, at: float, entries: Sequence[CollectiveEntry], made: str, *, lines: bool
) -> CallHistory:
    stacks = tuple(
        tuple(Frame(name, str(path), line_of(TEXT, mark)) for name, mark in KINDS[one][1]) for one in made
    )
    numbers = tuple((entry.seq, place) for place, entry in enumerate(entries))
    group = CallSequence("gloo", "0", "default_pg", (), tuple(entries), numbers, stacks if lines else ())
    return CallHistory(rank, at, pid_of(rank), ("gloo",), (group,))


EPOCH = "g" * 20 + "l"


def test_call_that_one_rank_alone_made_earlier_is_told_with_its_line_and_the_condition_above_it(
    tmp_path: Path,
) -> None:
    ranks = [EPOCH * 2 + "g" * 20 + "l"] * 3
    ranks[1] = EPOCH * 2 + "g" * 7 + "n" + "g" * 13  # and waits in the last one
    hang = found(tmp_path, *ranks)

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("call_added", (1,), (0, 2))
    assert (
        f"calls 1-49 of default_pg are the same on ranks 0-2; call 50 was made by rank 1 at `log_grad_norm(loss)` "
        f"({tmp_path}/train.py:10), in log_grad_norm ({tmp_path}/train.py:3), under `if loss > 4:` ({tmp_path}/train.py:9), and "
        f"by ranks 0, 2 at `loss.backward()` ({tmp_path}/train.py:8); since then rank 1 has made 1 call more"
    ) in hang.summary
    assert "step % 20" not in hang.summary  # where it came to light


def test_call_that_one_rank_left_out_earlier_is_told_with_the_line_that_the_others_made_it_at(
    tmp_path: Path,
) -> None:
    step = "gn"
    whole = step * 20 + "l"
    hang = found(
        tmp_path, whole * 3, whole + step * 9 + "g" + step * 10 + "l" + step * 20 + "l" + "g", whole * 3
    )

    assert (hang.cause, hang.ranks) == ("call_left_out", (1,))
    assert "call 61 was made by rank 1 at `loss.backward()`" in hang.summary
    assert "since then rank 1 has made 1 call fewer" in hang.summary


def test_without_lines_nothing_is_told_of_calls_that_look_the_same(tmp_path: Path) -> None:
    hang = found(tmp_path, EPOCH * 3, EPOCH * 2 + "g" * 7 + "n" + "g" * 13, lines=False)

    assert "are the same on" not in hang.summary and hang.cause not in (
        "call_added",
        "call_left_out",
        "calls_apart",
    )


def test_where_the_first_difference_is_the_call_they_wait_in_no_earlier_one_is_told(tmp_path: Path) -> None:
    hang = found(tmp_path, EPOCH * 2 + "l", EPOCH * 2 + "g")

    assert "are the same on" not in hang.summary


@pytest.mark.parametrize(
    ("loss", "said"), [("9.5", " (9.5 > 4 when read)"), ("0.5", ""), ("<Tensor>", ""), ("", "")]
)
def test_condition_is_told_with_its_values_where_it_still_holds(tmp_path: Path, loss: str, said: str) -> None:
    hang = found(tmp_path, EPOCH * 2 + "g" * 20 + "l", EPOCH * 2 + "g" * 7 + "n" + "g" * 13, loss=loss)

    assert f"under `if loss > 4:` ({tmp_path}/train.py:9){said}, and by rank 0" in hang.summary
