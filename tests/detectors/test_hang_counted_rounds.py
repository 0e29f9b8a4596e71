"""Ranks that have left a loop, and how many calls they had made in its rounds against those still in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import CallHistory, CallSequence, Frame
from tests.core.test_call_order import Call, dump_of
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.detectors.test_hang_variables import held
from tests.facts import pid_of
from tests.programs import line_of

TEXT = """
def ready(p):
    works.append(all_reduce(p))  # reduces


def wait():
    for work in works:
        work.wait()  # works


def main():
    for epoch in range(3):
        for step in range(160):
            loss.backward()  # backward
            wait()  # waits
        all_gather(rows)  # gathers


main()  # top
"""
REDUCES: Call = ("0", "all_reduce", 4096)
GATHERS: Call = ("0", "all_gather", 1)


def found(
    tmp_path: Path, left: int, inside: int, *, step: str = "157", epoch: str = "0", lines: bool = True
) -> Finding:
    """The last rank has made so many calls and left the loop; the others have begun as many as said, and are in it."""
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    at = {mark: line_of(TEXT, mark) for mark in ("reduces", "works", "backward", "waits", "gathers", "top")}
    top = f"<module> {path}:{at['top']}"
    waits = [top, f"main {path}:{at['waits']}", f"wait {path}:{at['works']}", REDUCE]
    stacks: dict[int, Sequence[str]] = {0: waits, 1: waits, 2: [top, f"main {path}:{at['gathers']}", REDUCE]}
    story = steady(world=3)
    reduces = (Frame("main", str(path), at["backward"]), Frame("ready", str(path), at["reduces"]))
    gathers = (Frame("main", str(path), at["gathers"]),)
    for _ in range(3):
        story.still(20.0, stacks)
        for rank, lines_of in stacks.items():
            read(story, path, rank, lines_of)
            values = {"step": "159" if rank == 2 else step, "epoch": epoch}
            held(story, rank, lines_of, {"main": values, "<module>": {}})
            made = [*[REDUCES] * left, GATHERS] if rank == 2 else [REDUCES] * inside
            dump = replace(
                dump_of(rank, made, pending=1 + max(0, inside - left - 1) * (rank != 2)),
                emitted=story.now,
                pid=pid_of(rank),
            )
            kept = dump.entries[-400:]  # of a ring that has turned
            numbers = tuple((entry.seq, place) for place, entry in enumerate(kept))
            stacked = tuple(gathers if entry.op == "all_gather" else reduces for entry in kept)
            group = CallSequence("gloo", "0", "default_pg", (), kept, numbers, stacked if lines else ())
            story.tell(
                replace(dump, entries=dump.entries[-60:]),
                CallHistory(rank, story.now, pid_of(rank), ("gloo",), (group,)),
            )
    story.still(20.0, stacks)
    return story.the("hang")


def test_rank_that_made_fewer_calls_in_its_rounds_than_as_often_in_each_is_named_with_both_counts(
    tmp_path: Path,
) -> None:
    hang = found(tmp_path, left=160 * 20 - 60, inside=158 * 20)

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("call_left_out", (2,), (0, 1))
    assert (
        f"ranks 0-1 have begun a call ({tmp_path}/train.py:3) 20 times in each of 158 rounds of `for step in range(160):` "
        f"({tmp_path}/train.py:13), and rank 2 has made 3140 in 160 rounds, 60 fewer than as often in each"
    ) in hang.summary
    assert "left a loop" not in hang.summary


@pytest.mark.parametrize(
    ("left", "inside", "step", "epoch"),
    [
        (160 * 20, 158 * 20 + 45, "157", "0"),  # a number that tells nothing of each round
        (160 * 19, 153 * 20, "152", "0"),  # as often in each on either side
        (160 * 20 - 60, 158 * 20, "157", "1"),  # an epoch before it made calls too
    ],
)
def test_counts_that_show_no_rank_to_be_irregular_are_not_told(
    tmp_path: Path, left: int, inside: int, step: str, epoch: str
) -> None:
    hang = found(tmp_path, left, inside, step=step, epoch=epoch)

    assert hang.cause == "left_the_loop" and "than as often in each" not in hang.summary
