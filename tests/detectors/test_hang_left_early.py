"""Ranks without a process group that look again and again for what a rank that has ended was to make."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import RankExited
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import TEXT, lines, read
from tests.facts import ALL_REDUCE, Story, pid_of, stack, tree
from tests.programs import line_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def asleep(rank: int) -> WaitsRead:
    thread = ThreadWait(pid_of(rank), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
    return WaitsRead(rank, pid_of(rank), 0.5, (ProcessWaits(pid_of(rank), 1, "python", (thread,)),))


def told(
    path: Path, stacks: dict[int, list[str]], ended: RankExited | None, *, after: float = 0.0
) -> Finding:
    """`ended` is told of a rank; the others go on for `after` seconds, and then poll."""
    story = steady(world=len(stacks) + 1)
    if ended is not None:
        story.tell(ended)
    going_on(story, [*stacks], after)
    polls(story, path, stacks, 60.0)
    return story.the("held-up")


def going_on(story: Story, ranks: list[int], seconds: float) -> None:
    end = story.now + seconds
    while story.now < end:
        for rank in ranks:
            line = int(story.now) % 7 + 1
            story.tell(
                tree(rank, story.now, cpu=story.now), stack(rank, story.now, [f"forward /app/m.py:{line}"])
            )
        story.wait(2.0)


def polls(story: Story, path: Path, stacks: dict[int, list[str]], seconds: float) -> None:
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
    end = story.now + seconds
    while story.now < end:
        for rank, stacked in stacks.items():
            story.tell(tree(rank, story.now), stack(rank, story.now, stacked), asleep(rank))
        story.wait(2.0)


def ended(rank: int, code: int | None = 0, signal: int | None = None) -> RankExited:
    return RankExited(rank, pid_of(rank), code, signal, "pidfd")


def polling(path: Path) -> list[str]:
    return lines(path, "waits", "wait_for", "pause")


def test_rank_that_ended_while_all_others_poll_at_one_place_is_named(path: Path) -> None:
    found = told(path, {0: polling(path), 1: polling(path)}, ended(2))

    assert (found.id, found.severity.value, found.klass, found.cause) == (
        "held-up",
        "warning",
        "peer_lost",
        "left_while_others_poll",
    )
    assert (found.ranks, found.waiting_ranks) == ((2,), (0, 1))
    loop = f"`while not os.path.exists(path):` ({path}:{line_of(TEXT, 'wait_for') - 1})"
    assert "rank 2 has been gone (exit code 0)" in found.summary
    assert f"ranks 0-1 sleep again and again in the loop {loop}" in found.summary


def test_one_rank_that_polls_alone_after_the_others_have_ended_waits_for_somebody_outside(path: Path) -> None:
    """Post-processing on rank 0: its upload is not confirmed yet."""
    found = told(path, {0: polling(path)}, ended(1))

    assert (found.ranks, found.cause) == ((0,), "polls_for_file")


@pytest.mark.parametrize(
    "exited",
    [
        pytest.param(None, id="nobody has ended"),
        pytest.param(ended(2, None), id="how it ended is not known"),
    ],
)
def test_ranks_that_poll_together_are_named_where_no_rank_has_ended_well(
    path: Path, exited: RankExited | None
) -> None:
    story = steady(world=3)
    if exited is not None:
        story.tell(exited)
    polls(story, path, {0: polling(path), 1: polling(path), **({} if exited else {2: polling(path)})}, 60.0)

    assert story.hang().cause != "left_while_others_poll"


def test_ranks_that_went_on_without_the_one_that_ended_do_not_look_for_it(path: Path) -> None:
    found = told(path, {0: polling(path), 1: polling(path)}, ended(2), after=60.0)

    assert (found.ranks, found.cause) == ((0, 1), "polls_for_file")


def test_ranks_that_poll_at_different_places_do_not_look_for_one_rank(path: Path) -> None:
    other = lines(path, "uploads", "upload")
    found = told(path, {0: polling(path), 1: other}, ended(2))

    assert (found.ranks, found.cause) == ((0, 1), "polls_for_file")


def test_rank_in_a_call_of_a_group_is_left_early_in_the_usual_way(path: Path) -> None:
    story = steady(world=3)
    story.tell(ended(2))
    story.still(60.0, {0: ALL_REDUCE, 1: ALL_REDUCE})

    assert (story.hang().ranks, story.hang().cause) == ((2,), "rank_left_early")


def test_rank_that_works_on_after_the_others_have_ended_is_no_news(path: Path) -> None:
    story = steady(world=2)
    story.tell(ended(1))
    going_on(story, [0], 70.0)

    assert [finding for finding in story.findings() if finding.id in ("hang", "held-up")] == []
