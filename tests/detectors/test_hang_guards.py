"""What keeps diag from calling a job hung, or a rank guilty, on too little: each guard once where it holds, and once where
it lets go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diag.detectors.hang import wants_closer_look
from diag.model.observations import (
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    Interrupted,
    Iteration,
    SaveStarted,
)
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.ckptfacts import folder, seen
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_core_dumps import NCCL, OWN, hung
from tests.detectors.test_hang_evidence import GPU_WAIT, gpu, quiet
from tests.facts import ALL_REDUCE, SLEEP, Story, pid_of, process, stack, tree

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
    hang = story.hang()
    assert (hang.ranks == (1,)) is not differ
    assert {*hang.ranks, *hang.waiting_ranks} == {0, 1}


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


# --- when diag looks closer


def looks_closer(story: Story, seconds: int) -> bool:
    """After so long in which only the log is silent: both ranks run Python."""
    for second in range(seconds):
        for rank in range(2):
            lines = (*SLEEP[:3], f"forward /app/model.py:{second}")
            story.tell(tree(rank, story.now, cpu=5.0 + second), stack(rank, story.now, lines))
        story.wait(1.0)
    return wants_closer_look(story.now, story.engine.job)


def test_closer_look_is_taken_when_the_log_is_three_of_its_longest_pauses_late() -> None:
    story = steady()
    for number in range(11, 14):
        looks_closer(story, 10 if number == 12 else 2)
        story.tell(Iteration(1, number, 100, f"iteration {number}"))

    assert not looks_closer(story, 25)
    assert looks_closer(story, 10)


def test_stopped_rank_is_looked_at_closer_at_once() -> None:
    story = steady()
    assert not looks_closer(story, 2)

    story.tell(tree(1, story.now, state="T"))

    assert wants_closer_look(story.now, story.engine.job)


# --- what is not checked


def test_rank_without_a_stack_is_not_checked_half_a_minute_after_it_was_found() -> None:
    def said(seconds: int) -> list[str]:
        story = Story()
        for _ in range(seconds):
            story.tell(*(tree(rank, story.now) for rank in range(2)), stack(0, story.now, SLEEP))
            story.wait(1.0)
        return [line.what for line in story.engine.not_checked() if line.what.startswith("hang class")]

    assert said(25) == []
    assert said(40) == ["hang class of rank 1"]


# --- work beside a wait


def test_child_that_works_keeps_the_wait_from_being_a_hang_for_ten_minutes() -> None:
    story = steady()
    seen_at = {}
    for second in range(0, 700, 2):
        helper = process(5001, ppid=pid_of(1), cpu=1.0 * second)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, helper), stack(1, story.now, SLEEP))
        story.wait(2.0)
        for finding in story.findings():
            seen_at.setdefault(finding.id, second)

    assert 55 <= seen_at["held-up"] <= 65  # a minute: what it prepares may take its time
    assert 590 <= seen_at["hang"] <= 620


# --- patience, grounds, and ranks without a stack


def test_shutdown_of_all_ranks_is_given_a_minute() -> None:
    story = steady()
    leave = (*SLEEP[:3], "_exit_function multiprocessing/util.py:360")
    story.still(56.0, {0: leave, 1: leave})
    early = story.findings()
    story.still(16.0, {0: leave, 1: leave})

    assert early == []
    assert story.hang().klass == "teardown"


@pytest.mark.parametrize("others", [(), (Party(pid=4711),)], ids=["nobody", "somebody"])
def test_fifo_is_a_dead_end_only_where_nobody_is_known_who_could_open_it(others: tuple[Party, ...]) -> None:
    story = steady()
    thread = ThreadWait(
        pid_of(1), "MainThread", "S", "wait_for_partner", Wait("fifo_open", others=others), same=True
    )
    process_waits = ProcessWaits(pid_of(1), 1, "python train.py", (thread,))
    for _ in range(20):
        story.tell(WaitsRead(1, pid_of(1), story.now, (process_waits,)))
        story.still(2.0, {0: ALL_REDUCE, 1: SLEEP})

    assert [ground.kind for ground in story.hang().grounds] == ([] if others else ["dead_end"])


def test_rank_whose_stack_nobody_could_read_is_suspected_where_all_others_wait_but_not_before_two_minutes() -> (
    None
):
    story = steady(3)
    story.engine.job.ranks[2].stack = story.engine.job.ranks[2].reading = None

    def unseen(seconds: int) -> None:
        for _ in range(seconds // 2):
            story.tell(*(tree(rank, story.now) for rank in range(3)))
            story.tell(*(stack(rank, story.now, ALL_REDUCE) for rank in range(2)))
            story.wait(2.0)

    unseen(110)
    early = story.findings()
    unseen(20)

    assert early == []
    assert (story.hang().ranks, story.hang().cause, story.hang().confidence.value) == (
        (2,),
        "no_stack",
        "low",
    )


# --- two kinds of evidence that do not agree


def test_kernel_of_a_rank_that_waits_does_not_overrule_who_is_elsewhere() -> None:
    found = hung(2, {0: [OWN], 1: [NCCL]}, {0: GPU_WAIT, 1: SLEEP}).hang()

    assert (found.klass, found.ranks) == ("peer_not_joined", (1,))


@pytest.mark.parametrize(
    ("ops", "culprits", "confidence"),
    [
        (("all_reduce", "broadcast", "all_reduce", "all_reduce"), (1,), "high"),
        (("all_reduce", "broadcast", "reduce", "all_reduce"), (1, 2), "medium"),
    ],
)
def test_mismatch_is_sure_only_where_fewer_than_half_differ(
    ops: Sequence[str], culprits: tuple[int, ...], confidence: str
) -> None:
    story = steady(4)
    for _ in range(5):
        for rank, op in enumerate(ops):
            in_call(story, rank, "a", op)
        story.still(20.0, dict.fromkeys(range(4), ALL_REDUCE))

    assert (story.hang().ranks, story.hang().confidence.value) == (culprits, confidence)
