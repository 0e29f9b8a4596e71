"""What counts as progress, what ends a hang, and what is no hang at all."""

from __future__ import annotations

import pytest

from diag.model.observations import (
    Iteration,
)
from tests.detectors.test_hang import started, steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, pid_of, process, stack, tree


@pytest.mark.parametrize("every", [4, 20, 35])
def test_hang_of_a_save_ends_when_its_writer_writes_again_be_it_in_bursts(every: int) -> None:
    story = steady()
    write = (*TRAIN, "save_checkpoint swift/megatron/trainers/base.py:774", "write /app/nfs.py:3")
    story.still(60.0, {0: ALL_REDUCE, 1: write})
    assert story.hang().klass == "checkpoint_io"

    hung = []
    for second in range(300):
        chars = (second // every + 1) << 30
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, chars=chars), stack(1, story.now, write))
        story.wait(1.0)
        hung.append(bool(story.findings()))

    assert hung[20] and not any(hung[100:])


def test_hang_of_a_training_stays_told_while_a_helper_stirs_now_and_then() -> None:
    """Its pauses would be called a hang again: it would be resolved and opened in turns."""
    story = steady()
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})
    for second in range(300):
        helper = process(5001, ppid=pid_of(1), chars=(second // 25) << 30)
        story.tell(
            tree(0, story.now),
            stack(0, story.now, ALL_REDUCE),
            tree(1, story.now, helper),
            stack(1, story.now, SLEEP),
        )
        story.wait(1.0)
        assert story.hang().klass == "peer_not_joined"


def test_slow_save_that_keeps_writing_raises_nothing() -> None:
    story = steady()
    write = (*TRAIN, "save_checkpoint swift/megatron/trainers/base.py:774")
    chars = 0

    for _ in range(100):
        chars += 600_000
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, chars=chars), stack(1, story.now, write))
        story.wait(2.0)

    assert story.findings() == []


def test_ranks_that_wait_while_one_compiles_in_a_child_raise_nothing() -> None:
    story = started()
    wait = (*TRAIN, "_worker_compile torch/_inductor/async_compile.py:100")

    for number in range(120):
        compiler = process(6000, comm="cc1plus", cpu=number * 1.9, ppid=pid_of(1))
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, compiler), stack(1, story.now, wait))
        story.wait(2.0)

    assert story.findings() == []


def test_rank_0_that_tokenises_while_all_others_wait_in_a_barrier_raises_nothing() -> None:
    story = Story(world=4)
    barrier = (*TRAIN, "barrier torch/distributed/distributed_c10d.py:4900")

    for number in range(200):
        story.tell(
            tree(0, story.now, cpu=number * 2.0),
            stack(0, story.now, (*TRAIN, "map datasets/arrow_dataset.py:3200")),
        )
        for rank in (1, 2, 3):
            story.tell(tree(rank, story.now), stack(rank, story.now, barrier))
        story.wait(2.0)

    assert story.findings() == []


def test_spinning_collective_wait_is_not_progress() -> None:
    story = steady()

    for number in range(20):
        story.tell(tree(0, story.now, cpu=100 + 2.0 * number), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, cpu=5.0), stack(1, story.now, SLEEP))
        story.wait(2.0)

    assert story.hang().ranks == (1,)


def test_hang_resolves_when_the_job_moves_again() -> None:
    story = steady()
    story.still(40.0, {0: ALL_REDUCE, 1: SLEEP})
    hung = [finding.id for finding in story.findings()]

    story.tell(Iteration(1, 11, 100, "iteration 11"))
    story.wait(2.0)

    assert hung == ["held-up"]
    assert story.findings() == []
    assert [change.kind.value for change in story.engine.history()] == ["opened", "resolved"]


@pytest.mark.parametrize("pause", [30.0, 3600.0])
def test_no_verdict_when_diag_itself_was_not_looking(pause: float) -> None:
    story = steady()

    story.wait(pause)  # the machine was suspended, or the sidecars were starved

    assert story.findings() == []


def test_shutdown_of_some_seconds_is_no_hang() -> None:
    story = steady()
    leave = (*TRAIN, "_exit_function multiprocessing/util.py:360")

    story.still(45.0, {0: leave, 1: leave})

    assert story.findings() == []


def test_memory_that_diags_own_question_takes_for_a_moment_is_no_progress():
    """2 x H200, 2026-11-21: each answer of torch's worker server raised and lowered the rank's RSS by some
    MB."""
    story = steady()

    for number in range(20):
        rss = (1 << 30) + (8 << 20) * (number % 2)
        story.tell(tree(0, story.now, rss=rss), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, rss=rss), stack(1, story.now, SLEEP))
        story.wait(2.0)

    assert story.hang().ranks == (1,)


def test_weights_that_load_by_page_faults_are_progress():
    story = Story()

    for number in range(60):
        for rank in (0, 1):
            story.tell(
                tree(rank, story.now, rss=(1 << 30) + number * (64 << 20)), stack(rank, story.now, SLEEP)
            )
        story.wait(2.0)

    assert story.findings() == []


def test_save_that_is_in_the_kernels_hands_is_given_five_minutes():
    story = steady()
    sync = (*TRAIN, "save_checkpoint swift/megatron/trainers/base.py:774", "fsync /app/storage.py:9")

    story.still(200.0, {0: ALL_REDUCE, 1: sync}, trees={1: {"state": "D", "wchan": "folio_wait_writeback"}})
    early = story.findings()
    story.still(150.0, {0: ALL_REDUCE, 1: sync}, trees={1: {"state": "D", "wchan": "folio_wait_writeback"}})

    assert early == []
    assert (story.hang().klass, story.hang().ranks) == ("checkpoint_io", (1,))


def test_memory_that_a_rank_takes_to_answer_us_does_not_end_its_hang() -> None:
    from diag.model.observations import FlightRecorder

    story = steady()
    story.still(20.0, {0: ALL_REDUCE, 1: SLEEP})
    assert story.hang().ranks == (1,)

    # `diag dump` reads /proc, asks the recorder, and the usual readings go on: the answer's 60 MB show in two
    # of them
    for second, size in enumerate(
        (1 << 30, (1 << 30) + (30 << 20), (1 << 30) + (60 << 20), (1 << 30) + (60 << 20))
    ):
        if second == 1:
            story.tell(FlightRecorder(1, story.now, "2.10", ("gloo",), (), (), pid_of(1)))
        for rank, lines in ((0, ALL_REDUCE), (1, SLEEP)):
            story.tell(
                tree(rank, story.now, rss=size if rank == 1 else 1 << 30), stack(rank, story.now, lines)
            )
        story.wait(1.0)

    assert [change.kind.value for change in story.engine.history()] == ["opened"]


def test_memory_of_a_question_that_is_answered_late_or_never_does_not_end_the_hang_either() -> None:
    from diag.model.observations import RecorderAsked

    story = steady()
    story.still(20.0, {0: ALL_REDUCE, 1: SLEEP})
    story.tell(RecorderAsked(1))
    for second in range(4):
        size = (1 << 30) + (second << 25)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, rss=size), stack(1, story.now, SLEEP))
        story.wait(1.0)

    assert [change.kind.value for change in story.engine.history()] == ["opened"]


def test_memory_that_grows_for_long_is_progress_though_it_was_asked_before() -> None:
    from diag.model.observations import FlightRecorder

    story = started()
    for second in range(60):
        if second % 20 == 10:
            story.tell(FlightRecorder(1, story.now, "2.10", ("gloo",), (), (), pid_of(1)))
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, rss=(1 << 30) + second * (64 << 20)), stack(1, story.now, SLEEP))
        story.wait(1.0)

    assert story.findings() == []
