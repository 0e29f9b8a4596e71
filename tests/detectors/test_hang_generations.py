"""Ranks of which some were started again, and wait for the others in a rendezvous of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model.observations import FrameVariables, RankExited, Variable, VariablesRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.facts import Story, found, frames, pid_of, stack, tree

INIT = (
    "init_process_group torch/distributed/distributed_c10d.py:1899",
    "_new_process_group_helper torch/distributed/distributed_c10d.py:2169",
)
TEXT = """
def connect(generation):
    store = dist.PrefixStore(f"generation{generation}", dist.TCPStore("127.0.0.1", 1))
    dist.init_process_group("gloo", store=store)


connect(1)
"""


@pytest.fixture
def stacked(tmp_path: Path) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    return [f"<module> {path}:7", f"connect {path}:4", *INIT]


def waiting(
    stacked: Sequence[str], again: Sequence[int], generations: dict[int, str], *, late: int = -1
) -> Story:
    """`again`: ranks that have ended, and run in new processes. `late`: one that is in its own code."""
    story = steady(world=3)
    places = {rank: found(rank, 3).placement for rank in range(3)}
    for rank in again:
        story.tell(RankExited(rank, pid_of(rank), 1, None, "pidfd"))
    story.wait(12.0)
    for rank in again:
        places[rank] = replace(places[rank], pid=pid_of(rank) + 100, start_ticks=9000)
        story.tell(replace(found(rank, 3), placement=places[rank]))
    for at in range(40):
        for rank, place in places.items():
            lines = stacked[:-2] if rank == late else stacked
            main = replace(tree(rank, story.now).main, pid=place.pid, start_ticks=place.start_ticks)
            story.tell(replace(tree(rank, story.now), main=main))
            story.tell(replace(stack(rank, story.now, lines, pid=place.pid), parent_pid=None))
            if at == 4:
                read(story, Path(stacked[0].split()[1].rpartition(":")[0]), rank, stacked)
                own = frames(*stacked)[1]
                values = (Variable("generation", generations[rank]),) if rank in generations else ()
                story.tell(
                    VariablesRead(
                        rank,
                        place.pid,
                        (FrameVariables(place.pid, own.function, own.file, own.line, False, values),),
                    )
                )
        story.wait(2.0)
    return story


def test_rank_that_was_started_again_alone_is_named_with_what_tells_the_rounds_apart(
    stacked: list[str],
) -> None:
    hang = waiting(stacked, [1], {0: "1", 1: "2", 2: "1"}).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("rendezvous", "started_again_alone", (1,))
    assert "rank 1 runs in a process (pid 1101) started" in hang.summary
    assert "ranks 0, 2 (pids 1000, 1002), and all wait in init_process_group" in hang.summary
    assert "`generation` was 1 on ranks 0, 2 and 2 on rank 1 when read" in hang.summary
    assert "gone" not in hang.summary and "torchrun" in hang.advice


@pytest.mark.parametrize("again", [[0, 1, 2], []], ids=["all of them", "none"])
def test_ranks_that_were_all_started_at_once_are_of_one_round(stacked: list[str], again: list[int]) -> None:
    story = waiting(stacked, again, {0: "1", 1: "1", 2: "1"})

    assert all(one.cause != "started_again_alone" for one in story.findings())


def test_peer_that_has_not_come_to_the_rendezvous_yet_is_late(stacked: list[str]) -> None:
    story = waiting(stacked, [1], {}, late=0)

    assert all(one.cause != "started_again_alone" for one in story.findings())
