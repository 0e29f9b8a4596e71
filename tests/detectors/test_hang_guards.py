"""What keeps diag from calling a job hung, or a rank guilty, on too little: each guard once where it holds, and once where
it lets go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diag.model.observations import (
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    Interrupted,
    SaveStarted,
)
from tests.detectors.ckptfacts import folder, seen
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_evidence import GPU_WAIT, gpu, quiet
from tests.facts import ALL_REDUCE, SLEEP, Story, pid_of, stack, tree

# --- how much has to be seen


def watched(story: Story, seconds: int, stacks_at: Sequence[int], trees_until: int = 10**6) -> None:
    """/proc each second, stacks only at these: rank 0 waits for rank 1."""
    for second in range(seconds):
        for rank, lines in ((0, ALL_REDUCE), (1, SLEEP)):
            if second <= trees_until:
                story.tell(tree(rank, story.now))
            if second in stacks_at:
                story.tell(stack(rank, story.now, lines))
        story.wait(1.0)


def test_two_equal_stacks_are_too_few_and_three_are_enough() -> None:
    story = steady()
    watched(story, 24, (0, 12))
    early = story.findings()
    watched(story, 2, (0,))

    assert early == []
    assert story.hang().ranks == (1,)


def test_stack_of_half_a_minute_ago_shows_nothing_of_now() -> None:
    story = steady()
    watched(story, 12, (0, 2, 4))
    early = story.findings()
    watched(story, 40, ())

    assert early == []
    assert story.findings() == []


def test_job_is_not_judged_while_proc_was_not_read() -> None:
    story = steady()
    watched(story, 30, range(0, 30, 2), trees_until=0)

    assert story.findings() == []


# --- GPUs


@pytest.mark.parametrize(
    ("used", "culprits"),
    [((1.0, 0.0, 0.0, 1.0), (1, 2)), ((1.0, 0.0, 0.0, 0.0), ()), ((0.0, 0.0, 0.0, 0.0), ())],
)
def test_idle_gpus_are_to_blame_only_while_they_are_no_more_than_those_that_spin(
    used: Sequence[float], culprits: tuple[int, ...]
) -> None:
    story = steady(4)
    stacks = dict.fromkeys(range(4), GPU_WAIT)
    quiet(story, stacks, lambda _: [gpu(rank, used[rank], 126.0) for rank in range(4)])

    assert story.hang().ranks == culprits


def test_idle_gpu_is_not_to_blame_where_not_every_gpu_was_read() -> None:
    story = steady(4)
    stacks = dict.fromkeys(range(4), GPU_WAIT)
    quiet(story, stacks, lambda _: [gpu(0, 1.0, 126.0), gpu(1, 0.0, 80.0), gpu(2, 1.0, 126.0)])

    assert story.hang().ranks == ()


# --- Flight Recorder beside stacks


def in_call(story: Story, rank: int, group: str, op: str = "all_reduce") -> None:
    members = tuple(range(story.world))
    groups = tuple(CollectiveGroup("nccl", name, "", members) for name in ("a", "b"))
    call = CollectiveEntry(
        "nccl", group, "", 5, 5, False, op, ((8,),), ((8,),), ("Float",), "scheduled", False, True, 5, 0.0
    )
    story.tell(FlightRecorder(rank, story.now, "2.10", ("nccl",), groups, (call,), pid_of(rank)))


@pytest.mark.parametrize(
    "calls", [(("a", "all_reduce"), ("b", "all_reduce")), (("a", "all_reduce"), ("a", "broadcast"))]
)
@pytest.mark.parametrize("second", [ALL_REDUCE, SLEEP], ids=["waits", "elsewhere"])
def test_calls_that_do_not_fit_are_the_cause_only_where_all_ranks_wait(
    calls: tuple[tuple[str, str], ...], second: Sequence[str]
) -> None:
    """A rank that is elsewhere may have left its call behind: on a GPU calls are made ahead."""
    story = steady()
    for _ in range(5):
        for rank, (group, op) in enumerate(calls):
            in_call(story, rank, group, op)
        story.still(20.0, {0: ALL_REDUCE, 1: second})

    differ = story.hang().klass in ("collective_order_deadlock", "collective_mismatch")
    assert differ == (second is ALL_REDUCE)
    assert story.hang().ranks == ((0, 1) if differ else (1,))


# --- who holds the others up


def held(
    stacks: dict[int, Sequence[str]],
    seconds: int = 60,
    *,
    blind: int = -1,
    cpu: dict[int, float] | None = None,
) -> Story:
    """Rank 1 runs Python all the while; `cpu`: that of the others in each second."""
    story = steady(3)
    for second in range(seconds):
        for rank in range(3):
            busy = 1.0 if rank == 1 else (cpu or {}).get(rank, 0.0)
            story.tell(tree(rank, story.now, cpu=5.0 + busy * second))
            if rank != blind:
                lines = [line.replace(":120", f":{120 + second % 7}") for line in stacks[rank]]
                story.tell(stack(rank, story.now, lines))
        story.wait(1.0)
    return story


def test_rank_that_computes_holds_up_those_that_wait_at_rest() -> None:
    assert held({0: ALL_REDUCE, 1: SLEEP, 2: ALL_REDUCE}).the("held-up").ranks == (1,)


def test_one_waiting_rank_that_takes_cpu_may_be_making_calls() -> None:
    assert held({0: ALL_REDUCE, 1: SLEEP, 2: ALL_REDUCE}, cpu={2: 0.02}).findings() == []


def test_nobody_is_said_to_hold_up_others_while_one_rank_is_not_seen() -> None:
    assert held({0: ALL_REDUCE, 1: SLEEP, 2: ALL_REDUCE}, 110, blind=2).findings() == []


# --- jobs that end, and jobs that save


def test_job_that_was_asked_to_end_is_not_judged() -> None:
    story = steady()
    story.tell(Interrupted(None, 2))
    story.still(90.0, {0: ALL_REDUCE, 1: SLEEP})

    assert story.findings() == []


def test_save_of_which_only_the_folder_tells_goes_on_as_long_as_that_grows() -> None:
    """On a network file system no counter of a process moves, and another node may be the one that writes."""
    story = steady()
    write = (*SLEEP[:3], "save_checkpoint swift/megatron/trainers/base.py:774")
    story.tell(SaveStarted(None, "saving"))
    for part in range(10):
        story.tell(seen(folder(10, at=story.now, files=part + 1)))
        story.still(30.0, {0: ALL_REDUCE, 1: write})
    growing = story.findings()
    story.still(60.0, {0: ALL_REDUCE, 1: write})

    assert growing == []
    assert story.hang().klass == "checkpoint_io"
