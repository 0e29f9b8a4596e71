"""What an earlier attempt of the job left is told apart from what holds this one up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import RankExited
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, SLEEP, Story, found, pid_of, stack, tree

INIT = (
    "<module> /app/lm.py:54",
    "main /app/lm.py:23",
    "init_process_group torch/distributed/distributed_c10d.py:1899",
    "_new_process_group_helper torch/distributed/distributed_c10d.py:2169",
)


def restarted(story: Story | None = None) -> Story:
    """Rank 1 has died, and both ranks run in new processes."""
    story = story or steady(world=2)
    story.tell(RankExited(1, pid_of(1), 1, None, "pidfd"), RankExited(0, pid_of(0), None, 15, "pidfd"))
    story.wait(4.0)
    assert "attempt" not in story.the("rank-died").summary
    for rank in range(2):
        place = replace(found(rank).placement, pid=pid_of(rank) + 100, start_ticks=9000)
        story.tell(replace(found(rank), placement=place))
    return story


def still(story: Story, seconds: float, *lines: tuple[str, ...]) -> None:
    for _ in range(int(seconds / 2)):
        for rank in range(2):
            main = replace(tree(rank, story.now).main, pid=pid_of(rank) + 100, start_ticks=9000)
            story.tell(replace(tree(rank, story.now), main=main))
            story.tell(replace(stack(rank, story.now, lines[rank], pid=pid_of(rank) + 100), parent_pid=None))
        story.wait(2.0)


def hangs(story: Story) -> list[str]:
    return [one.cause for one in story.findings() if one.id in ("hang", "held-up")]


def test_death_says_that_it_was_in_an_earlier_attempt_beside_the_hang_of_the_present_one() -> None:
    story = restarted()
    still(story, 60.0, ALL_REDUCE, SLEEP)

    death = story.the("rank-died")
    assert death.summary.startswith(f"rank 1 (pid {pid_of(1)}) ended with exit code 1")
    assert ", in an earlier attempt of the job" in death.summary
    assert "in phase" not in death.summary
    assert story.hang().ranks == (1,)


def test_ranks_that_were_all_started_again_and_never_meet_are_reported_after_a_minute() -> None:
    story = restarted()
    still(story, 50.0, INIT, INIT)
    assert hangs(story) == []

    still(story, 30.0, INIT, INIT)

    held = story.the("held-up")
    assert (held.cause, held.klass, held.ranks) == ("started_again_together", "comm_init", ())
    assert (
        "they run in processes (pids 1100, 1101) started again after rank 1 (pid 1001) had failed"
        in held.summary
    )
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in held.advice


def test_start_that_took_long_in_the_first_attempt_may_take_so_long_again() -> None:
    first = Story()
    first.still(50.0, {0: INIT, 1: INIT})
    first.still(2.0, {0: SLEEP, 1: SLEEP})
    story = restarted(first)

    still(story, 80.0, INIT, INIT)
    assert hangs(story) == []
    still(story, 40.0, INIT, INIT)
    assert hangs(story) == ["started_again_together"]


def test_peer_of_a_restarted_job_that_has_not_come_yet_is_late() -> None:
    story = restarted()
    still(story, 90.0, INIT, SLEEP)

    assert "started_again_together" not in hangs(story)


@pytest.mark.parametrize("seconds", [90.0])
def test_first_start_has_its_usual_patience(seconds: float) -> None:
    story = Story()
    story.still(seconds, {0: INIT, 1: INIT})

    assert hangs(story) == []
