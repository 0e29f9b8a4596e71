"""What a rank does that has not come to the call of the others: it waits for its own GPU, is busy in C, or runs
Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.detectors.hang.at_rest import with_work
from diag.detectors.hang.verdict import Verdict
from diag.model import Confidence, Finding
from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder, StackSample, ThreadStack
from tests.detectors.gpufacts import sample
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, frames, pid_of, stack, tree

ITEM = (*TRAIN, "loss_of /app/train.py:98")
LAUNCH = (*TRAIN, "train_step /app/train.py:71")
FETCH = (*TRAIN, "fetch /app/fetch.py:5", "wait lib/python3.11/threading.py:327")
OWN = (*TRAIN, "pause /app/train.py:31")
SYNCHRONIZE = (*TRAIN, "synchronize torch/cuda/__init__.py:1162")
_NOT_COME = Verdict("peer_not_joined", (1,), (0,), "not_in_collective", 1000.0, Confidence.MEDIUM)


def on_gpu() -> Story:
    story = steady()
    story.tell(sample(0, pids=(pid_of(0), pid_of(1))))
    return story


def reads(
    story: Story,
    rank: int,
    lines: Sequence[str],
    *,
    cpu: float = 1.0,
    owns_gil: bool = False,
    state: str = "",
) -> None:
    main = ThreadStack(pid_of(rank), "MainThread", frames(*lines), True, owns_gil)
    story.tell(
        tree(rank, story.now, cpu=cpu * story.now, state=state or ("R" if cpu else "S")),
        StackSample(rank, pid_of(rank), (main,), "remote_stack", story.now),
    )


def calls(story: Story, rank: int, seq: int, *, ended: bool = False) -> None:
    """The rank's recorder: this is the last call that it has made, and all before have ended."""
    call = CollectiveEntry(
        "nccl", "0", "default_pg", seq, seq, False, "all_reduce", ((4,),), ((4,),), ("float",),
        "completed" if ended else "scheduled", ended, not ended, seq, 0.0,
    )  # fmt: skip
    group = CollectiveGroup("nccl", "0", "default_pg", (0, 1), seq, seq if ended else seq - 1)
    story.tell(FlightRecorder(rank, story.now, "2.10", ("nccl",), (group,), (call,), pid_of(rank)))


def stands(
    story: Story,
    culprit: Sequence[str],
    seconds: int = 60,
    *,
    cpu: float = 1.0,
    owns_gil: bool = False,
    last: tuple[int, int] = (11, 10),
) -> None:
    """Rank 0 waits in .item() for a call that rank 1 has not made (`last`: the last call of each)."""
    for second in range(0, seconds, 2):
        reads(story, 0, ITEM)
        reads(story, 1, culprit, cpu=cpu, owns_gil=owns_gil)
        if second % 10 == 4:
            calls(story, 0, last[0])
            calls(story, 1, last[1], ended=last[1] < last[0])
        story.wait(2.0)


def said(hang: Finding) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
    return hang.klass, hang.cause, hang.ranks, hang.waiting_ranks


def test_rank_in_a_synchronisation_that_has_not_come_to_the_call_waits_for_its_own_gpu() -> None:
    story = on_gpu()
    stands(story, SYNCHRONIZE)

    hang = story.the("held-up")
    assert said(hang) == ("gpu_side", "waits_for_gpu", (1,), (0,))
    assert "inside synchronize" in hang.summary and "for its GPU" in hang.summary
    assert "has not entered the call in which rank 0 waits" in hang.advice
    assert f"pid {pid_of(1)}" in hang.advice and "diag dump --native" in hang.advice


def test_rank_that_spins_without_a_frame_is_busy_in_c_which_may_be_its_gpu_or_a_library() -> None:
    story = on_gpu()
    stands(story, LAUNCH)

    hang = story.the("held-up")
    assert said(hang) == ("peer_not_joined", "busy_in_c", (1,), (0,))
    assert "rank 1 has been busy in train_step (/app/train.py:71) at 100 % CPU in C code" in hang.summary
    assert "or a computation of a library?" in hang.advice


def test_rank_that_runs_python_meanwhile_is_busy_and_nothing_is_said_of_a_gpu() -> None:
    story = on_gpu()
    stands(story, LAUNCH, owns_gil=True)

    hang = story.the("held-up")
    assert said(hang) == ("peer_not_joined", "busy", (1,), (0,))
    assert "GPU" not in hang.advice and "in C code" not in hang.summary


def test_rank_that_sleeps_is_neither() -> None:
    story = on_gpu()
    stands(story, SLEEP, cpu=0.0)

    assert said(story.the("held-up"))[1:] == ("not_in_collective", (1,), (0,))


@pytest.mark.parametrize("culprit", [SYNCHRONIZE, LAUNCH])
def test_rank_that_has_made_the_same_call_waits_like_the_others(culprit: tuple[str, ...]) -> None:
    story = on_gpu()
    stands(story, culprit, 120, last=(11, 11))

    hang = story.the("held-up")
    assert said(hang)[1:] == ("all_ranks_wait", (), (0, 1))


@pytest.mark.parametrize("culprit", [SYNCHRONIZE, LAUNCH])
def test_ranks_that_spin_while_calls_are_made_are_not_held_up(culprit: tuple[str, ...]) -> None:
    """Healthy steps that end in .item(), a log that is silent: whenever one looks, all spin at one line."""
    story = on_gpu()
    for number in range(40):
        stands(story, culprit, 10, last=(20 + number, 20 + number))

    assert story.findings() == []


def test_one_rank_that_computes_on_a_machine_without_gpus_is_busy() -> None:
    """`busy_in_c` needs to know that the rank may be on a GPU."""
    story = steady()
    for second in range(0, 60, 2):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        reads(story, 1, LAUNCH)
        if second % 10 == 4:
            calls(story, 0, 11)
            calls(story, 1, 10, ended=True)
        story.wait(2.0)

    assert said(story.hang())[1:] == ("busy", (1,), (0,))


# -- the rule itself
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["sleeps", "rank_left_early", "all_ranks_wait", "calls_differ"])
def test_cause_that_is_known_stays(cause: str) -> None:
    story = on_gpu()
    stands(story, SYNCHRONIZE, 10)
    verdict = replace(_NOT_COME, cause=cause)

    assert with_work(verdict, story.engine.job) is verdict


def test_nothing_is_said_of_a_rank_that_is_not_seen_here() -> None:
    story = on_gpu()

    assert with_work(replace(_NOT_COME, culprits=(7,)), story.engine.job).cause == "not_in_collective"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({0: SYNCHRONIZE, 1: SYNCHRONIZE}, ("gpu_side", "waits_for_gpu", False)),
        ({0: LAUNCH, 1: LAUNCH}, ("peer_not_joined", "busy_in_c", True)),
        # one of them waits for its GPU for sure, of the other it is not known
        ({0: SYNCHRONIZE, 1: LAUNCH}, ("peer_not_joined", "busy_in_c", True)),
    ],
)
def test_of_several_ranks_it_is_said_what_is_true_of_each(
    lines: dict[int, tuple[str, ...]], expected: tuple[str, str, bool]
) -> None:
    story = on_gpu()
    for _ in range(6):
        for rank, where in lines.items():
            reads(story, rank, where)
        story.wait(2.0)

    verdict = with_work(replace(_NOT_COME, culprits=(0, 1), waiting=()), story.engine.job)

    assert (verdict.klass, verdict.cause, verdict.busy) == expected


@pytest.mark.parametrize(("other", "cause"), [(FETCH, "call_does_not_return"), (OWN, "not_in_collective")])
def test_call_does_not_return_where_every_one_of_them_is_in_a_call(
    other: tuple[str, ...], cause: str
) -> None:
    """A rank that is at a line of its own has called nothing that might not return."""
    story = on_gpu()
    for _ in range(6):
        reads(story, 0, FETCH, cpu=0.0)
        reads(story, 1, other, cpu=0.0)
        story.wait(2.0)

    verdict = with_work(replace(_NOT_COME, culprits=(0, 1), waiting=()), story.engine.job)

    assert verdict.cause == cause


@pytest.mark.parametrize(("gil_of_one", "cause"), [(False, "busy_in_c"), (True, "busy")])
def test_ranks_of_which_one_runs_python_are_busy(gil_of_one: bool, cause: str) -> None:
    story = on_gpu()
    for _ in range(6):
        reads(story, 0, LAUNCH)
        reads(story, 1, LAUNCH, owns_gil=gil_of_one)
        story.wait(2.0)

    verdict = with_work(replace(_NOT_COME, culprits=(0, 1), waiting=()), story.engine.job)

    assert verdict.cause == cause


@pytest.mark.parametrize(
    ("cpu", "state", "cause"),
    [
        (0.1, "S", "busy"),  # found asleep, and takes a tenth of a core: a crowded machine
        (0.01, "R", "busy"),  # ready for a core that it seldom gets
        (0.01, "S", "not_in_collective"),
    ],
)
def test_rank_computes_that_takes_cpu_or_is_ready_for_it(cpu: float, state: str, cause: str) -> None:
    story = on_gpu()
    for _ in range(6):
        reads(story, 0, LAUNCH, owns_gil=True)
        reads(story, 1, LAUNCH, cpu=cpu, state=state)
        story.wait(2.0)

    assert with_work(_NOT_COME, story.engine.job).cause == cause
    # beside one that computes for sure
    assert with_work(replace(_NOT_COME, culprits=(0, 1), waiting=()), story.engine.job).cause == cause
