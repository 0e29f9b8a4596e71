"""A wait for the GPU that has no frame of its own: `.item()`, `.cpu()`, a full launch queue spin in the driver, at one
line, without the GIL. What looks alike and is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.model.observations import Frame, ProcessTree, StackSample, ThreadStack
from diag.state.stack_activity import Activity
from tests.detectors.gpufacts import sample
from tests.facts import TRAIN, Story, frames, pid_of, tree

ITEM = (*TRAIN, "loss_of /app/train.py:98")
SECONDS = 2.0  # between readings


def job(*gpu_pids: int, gpu: bool = True) -> Story:
    """Two ranks; NVML shows these processes on the GPU."""
    story = Story([])
    if gpu:
        story.tell(sample(0, pids=gpu_pids))
    return story


def spins(
    story: Story,
    times: int = 4,
    *,
    cpu: float = 1.0,
    ready: float | None = 0.0,
    owns_gil: Sequence[bool | None] = (False,),
    where: Sequence[tuple[str, ...]] = (ITEM,),
    rank: int = 0,
    switches: float = 0.0,
) -> None:
    """So many readings of a rank whose main thread has this share of a core, and is ready for one without getting it
    for that share of the time. It gives it away `switches` times a second. Of `owns_gil` and `where` the next is taken for each."""
    for number in range(times):
        story.tell(
            replace(_tree(rank, story.now, cpu, ready), switches=int(switches * story.now)),
            _stack(rank, story.now, where[number % len(where)], owns_gil[number % len(owns_gil)]),
        )
        story.wait(SECONDS)


def _tree(rank: int, at: float, cpu: float, ready: float | None) -> ProcessTree:
    return replace(tree(rank, at, cpu=cpu * at), run_delay_seconds=None if ready is None else ready * at)


def _stack(rank: int, at: float, lines: tuple[str, ...], owns_gil: bool | None) -> StackSample:
    made: tuple[Frame, ...] = frames(*lines)
    main = ThreadStack(pid_of(rank), "MainThread", made, True, owns_gil)
    return StackSample(rank, pid_of(rank), (main,), "remote_stack", at)


def activity(story: Story, rank: int = 0) -> Activity | None:
    return story.engine.job.ranks[rank].activity


def test_rank_that_spins_at_one_line_without_the_gil_waits_for_its_gpu() -> None:
    story = job(pid_of(0), pid_of(1))
    spins(story)

    assert activity(story) is Activity.GPU_SYNC


def test_it_takes_three_samples_of_one_line() -> None:
    story = job(pid_of(0))
    spins(story, 2)
    early = activity(story)
    spins(story, 1)

    assert (early, activity(story)) == (Activity.OTHER, Activity.GPU_SYNC)


def test_rank_that_is_found_elsewhere_between_goes_through_its_code() -> None:
    story = job(pid_of(0))
    spins(story, 12, where=[ITEM, ITEM, (*TRAIN, "forward /app/model.py:7")])

    assert activity(story) is Activity.OTHER


@pytest.mark.parametrize(
    "owns_gil",
    [
        (True,),  # `while True: pass`
        (False, False, True),  # a loop of Python that another thread interrupts now and then
        (None,),  # not known: an older py-spy, or a reader that cannot tell
        (False, False, None),
    ],
)
def test_code_that_holds_the_gil_or_may_hold_it_is_no_wait_for_a_gpu(
    owns_gil: tuple[bool | None, ...],
) -> None:
    story = job(pid_of(0))
    spins(story, 12, owns_gil=owns_gil)

    assert activity(story) is Activity.OTHER


def test_gil_that_was_held_two_samples_ago_is_not_forgotten() -> None:
    story = job(pid_of(0))
    spins(story, 6, owns_gil=(True,))
    spins(story, 2)
    early = activity(story)
    spins(story, 1)

    assert (early, activity(story)) == (Activity.OTHER, Activity.GPU_SYNC)


@pytest.mark.parametrize(
    ("cpu", "ready", "expected"),
    [
        (0.92, 0.0, Activity.GPU_SYNC),  # the least that was measured is 0.93
        (0.92, None, Activity.GPU_SYNC),  # a kernel without schedstat
        (0.85, 0.0, Activity.OTHER),  # it sleeps in between: work of another kind
        (0.85, None, Activity.OTHER),
        (0.2, 0.78, Activity.GPU_SYNC),  # its core is shared: ready all the time, and not run
        (0.2, 0.5, Activity.OTHER),
        (0.0, 0.0, Activity.OTHER),  # it sleeps
    ],
)
def test_core_must_be_used_or_wanted_all_the_time(
    cpu: float, ready: float | None, expected: Activity
) -> None:
    story = job(pid_of(0))
    spins(story, 6, cpu=cpu, ready=ready)

    assert activity(story) is expected


def test_where_no_gpu_is_seen_no_rank_waits_for_one() -> None:
    story = job(gpu=False)
    spins(story, 12)

    assert activity(story) is Activity.OTHER


def test_rank_that_is_not_on_the_gpu_while_another_of_the_job_is_does_not_wait_for_it() -> None:
    """A rank of a job on CPU cores beside one that uses the GPU, or one that has not come so far."""
    story = job(pid_of(1), 4711)
    spins(story, 12)
    spins(story, 12, rank=1)

    assert (activity(story, 0), activity(story, 1)) == (Activity.OTHER, Activity.GPU_SYNC)


def test_where_the_driver_shows_no_process_of_the_job_any_rank_may_use_a_gpu() -> None:
    """In a container NVML shows none, or those of the host under other numbers."""
    story = job()
    spins(story)
    other = job(4711)
    spins(other)

    assert (activity(story), activity(other)) == (Activity.GPU_SYNC, Activity.GPU_SYNC)


def test_rank_that_comes_to_its_gpu_late_is_known_to_be_there() -> None:
    story = job(pid_of(1))
    spins(story, 6)
    story.tell(sample(0, pids=(pid_of(0), pid_of(1))))
    spins(story, 1)

    assert activity(story) is Activity.GPU_SYNC


def test_spinning_in_such_a_wait_is_no_movement_and_a_loop_of_python_is() -> None:
    """A core at 100 % made every suspicion end."""
    waits, computes = job(pid_of(0)), job(pid_of(0))
    spins(waits, 20)
    spins(computes, 20, owns_gil=(True,))

    assert waits.now - waits.engine.job.ranks[0].moved["cpu"] > 15 * SECONDS
    assert computes.now - computes.engine.job.ranks[0].moved["cpu"] <= SECONDS


def test_loop_of_such_waits_moves_by_giving_its_core_away_in_between() -> None:
    """A healthy loop that prints nothing stands in `.item()` whenever one looks."""
    loop, stuck = job(pid_of(0)), job(pid_of(0))
    spins(loop, 20, switches=30.0)
    spins(stuck, 20, switches=0.9)  # a signal handler, a tick: less than three between two readings

    assert activity(loop) is activity(stuck) is Activity.GPU_SYNC
    assert loop.now - loop.engine.job.ranks[0].moved["cpu"] <= SECONDS
    assert stuck.now - stuck.engine.job.ranks[0].moved["cpu"] > 15 * SECONDS


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (
            (*TRAIN, "__next__ torch/utils/data/dataloader.py:741", "get python3.11/queue.py:180"),
            Activity.DATA,
        ),
        ((*TRAIN, "wait python3.11/threading.py:331"), Activity.LOCK),
        ((*TRAIN, "save torch/serialization.py:900", "pack /app/pack.py:3"), Activity.CHECKPOINT),
        ((*TRAIN, "all_reduce torch/distributed/distributed_c10d.py:3173"), Activity.COLLECTIVE),
    ],
)
def test_frames_that_say_what_it_waits_for_are_believed_first(
    where: tuple[str, ...], expected: Activity
) -> None:
    story = job(pid_of(0))
    spins(story, 6, where=[where])

    assert activity(story) is expected
