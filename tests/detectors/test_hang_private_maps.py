"""Who has written into a file's mapping that is its own alone, while others look for what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import FrameVariables, Mapped, Variable, VariablesRead
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.facts import frames, pid_of
from tests.programs import line_of

TEXT = """
def wait(table, version):
    while table.version < version:
        time.sleep(0.02)  # polls


for step in range(1, 600):
    loss.backward()  # backward
    if step % 60 == 0:
        wait(table, step // 60)  # waits
"""
FILE = "/job/out/weights.bin"
OWN, UNTOUCHED = Mapped(FILE, private=True, written=True), Mapped(FILE, private=True, written=False)
SHARED = Mapped(FILE, private=False, written=False)


def found(tmp_path: Path, *mapped: Sequence[Mapped]) -> Finding:
    """Rank 1 polls in step 60; rank 0 is in step 61."""
    path = tmp_path / "hard.py"
    path.write_text(TEXT)
    at = {mark: f"{path}:{line_of(TEXT, mark)}" for mark in ("polls", "backward", "waits")}
    polls = [f"<module> {at['waits']}", f"wait {at['polls']}"]
    stacks: dict[int, Sequence[str]] = {0: [f"<module> {at['backward']}", REDUCE], 1: polls}
    story = steady(world=2)
    story.still(30.0, stacks)
    for rank, lines in stacks.items():
        read(story, path, rank, lines)
        step = Variable("step", "61" if rank == 0 else "60")
        shown = [
            FrameVariables(
                pid_of(rank), one.function, one.file, one.line, not one.file.startswith("/"), (step,)
            )
            for one in frames(*lines)
        ]
        story.tell(VariablesRead(rank, pid_of(rank), tuple(shown), mapped=tuple(mapped[rank])))
    thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
    story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
    story.still(30.0, stacks)
    return story.the("held-up")


@pytest.mark.parametrize("theirs", [UNTOUCHED, SHARED])
def test_rank_that_wrote_into_its_private_mapping_is_to_blame_and_not_who_looks_for_it(
    tmp_path: Path, theirs: Mapped
) -> None:
    finding = found(tmp_path, [OWN], [theirs])

    assert (finding.cause, finding.ranks, finding.waiting_ranks) == ("written_to_private_map", (0,), (1,))
    assert (
        "rank 0 has mapped /job/out/weights.bin privately (copy on write) and written there"
        in finding.summary
    )
    assert "ACCESS_WRITE" in finding.advice


@pytest.mark.parametrize(
    "mapped",
    [
        ([SHARED], [UNTOUCHED]),  # what it wrote is in the file
        ([OWN], [OWN]),  # weights of a checkpoint, which each has changed since
        ([OWN], []),
        ([UNTOUCHED], [UNTOUCHED]),
    ],
)
def test_no_mapping_is_named_that_hides_nothing(tmp_path: Path, mapped: tuple[Sequence[Mapped], ...]) -> None:
    finding = found(tmp_path, *mapped)

    assert (finding.cause, finding.ranks) == ("condition_was_met", (1,))
