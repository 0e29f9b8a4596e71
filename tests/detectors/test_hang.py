"""Hangs by class: who is named, in what, and after how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diag.model.observations import (
    EpochStarted,
    Iteration,
    Observation,
    PhaseMarked,
    RankExited,
    SourceFailed,
    ThreadStack,
)
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, WORKER, Story, frames, pid_of, process, stack, tree


def started(world: int = 2) -> Story:
    story = Story(world=world)
    story.tell(EpochStarted(0, 0, "[INFO:swift] The training of Epoch 0 starts..."))
    return story


def steady(world: int = 2, steps: int = 10) -> Story:
    story = started(world)
    for number in range(1, steps + 1):
        story.wait(0.5)
        for rank in range(world):
            story.tell(
                tree(rank, story.now, cpu=number * 0.5),
                stack(rank, story.now, (*TRAIN, f"forward /app/model.py:{number}")),
            )
        story.tell(Iteration(world - 1, number, 100, f"iteration {number}"))
    return story


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            EpochStarted(0, 2, "[INFO:swift] The training of Epoch 2 starts..."),
            ' for 1 min after "The training of Epoch 2 starts..." and before the first step;',
        ),  # resumed
        # the transformers path, which has no such line
        (
            PhaseMarked(0, "first_step", "Train:   0%|          | 0/8 [00:00<?, ?it/s]"),
            " for 1 min before the first step;",
        ),
    ],
)
def test_hang_before_the_first_step_quotes_what_the_log_said_and_nothing_else(
    told: Observation, words: str
) -> None:
    story = Story(world=2)
    story.tell(told)

    story.still(60.0, {0: ALL_REDUCE, 1: DATA})

    assert words in story.hang().summary


def test_rank_that_waits_for_its_first_batch_is_named_and_its_stuck_worker_with_it() -> None:
    story = started()
    worker = process(5001, comm="pt_data_worker", ppid=pid_of(1))

    for _ in range(25):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(
            tree(1, story.now, worker), stack(1, story.now, DATA), stack(1, story.now, WORKER, pid=5001)
        )
        story.wait(2.0)
    hang = story.hang()

    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("data_loading", (1,), (0,))
    assert hang.cause == "dataloader_worker_blocked"
    assert "5001" in hang.summary and "read_record" in hang.summary
    assert "rank 0 waits in all_reduce" in hang.summary
    assert hang.confidence.value == "high"


def test_hang_in_steady_state_with_short_steps_is_found_within_30_seconds_and_not_before_15() -> None:
    story = steady()
    since = story.now

    while not story.findings() and story.now - since < 60:
        story.still(1.0, {0: ALL_REDUCE, 1: SLEEP}, step=1.0)

    assert 15 <= story.now - since <= 30
    assert (story.hang().klass, story.hang().ranks) == ("peer_not_joined", (1,))


def test_steps_of_a_minute_are_waited_for() -> None:
    story = started()
    for number in range(1, 5):
        story.still(60.0, {0: ALL_REDUCE, 1: ALL_REDUCE})
        story.tell(Iteration(1, number, 100, f"iteration {number}"))

    story.still(150.0, {0: ALL_REDUCE, 1: SLEEP})

    assert story.findings() == []


def test_ranks_that_are_all_stopped_at_one_line_are_all_named() -> None:
    story = steady()
    for _ in range(20):
        for rank in range(2):
            story.tell(tree(rank, story.now, state="T"), stack(rank, story.now, ALL_REDUCE))
        story.wait(2.0)

    hang = story.the("hang")

    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("stopped", (0, 1), ())


def test_stopped_rank_outranks_everything_and_needs_no_stack() -> None:
    story = steady()

    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE), tree(1, story.now, state="T"))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("stopped", (1,), (0,))
    assert f"kill -CONT {pid_of(1)}" in hang.advice


def test_rank_whose_two_threads_wait_for_each_other_is_a_lock_deadlock() -> None:
    story = steady()
    other = ThreadStack(
        77, "writer", frames("run threading.py:975", "flush /app/io.py:8", "write /app/io.py:20")
    )

    for _ in range(15):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(
            tree(1, story.now, wchan="futex_do_wait"),
            stack(1, story.now, (*TRAIN, "save_stats /app/io.py:31"), other),
        )
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("lock_deadlock", "threads_wait_for_each_other", (1,))


def test_rank_that_sleeps_with_the_gil_is_a_gil_deadlock() -> None:
    story = steady()

    for _ in range(15):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, (*TRAIN, "call_c /app/ext.py:3"), owns_gil=True))
        story.wait(2.0)

    assert (story.hang().klass, story.hang().ranks) == ("gil_deadlock", (1,))


def test_checkpoint_writer_that_stands_still_is_checkpoint_io() -> None:
    story = steady()
    write = (
        *TRAIN,
        "save_checkpoint swift/megatron/trainers/base.py:774",
        "write_preloaded_data megatron/core/dist_checkpointing/strategies/filesystem_async.py:200",
        "write /app/nfs.py:3",
    )

    story.still(60.0, {0: ALL_REDUCE, 1: write})

    assert (story.hang().klass, story.hang().ranks) == ("checkpoint_io", (1,))


def test_when_all_ranks_wait_in_a_collective_nobody_is_blamed_and_the_wait_is_longer() -> None:
    story = steady()

    story.still(45.0, {0: ALL_REDUCE, 1: ALL_REDUCE})
    early = story.findings()
    story.still(60.0, {0: ALL_REDUCE, 1: ALL_REDUCE})
    hang = story.hang()

    assert early == []
    assert (hang.ranks, hang.waiting_ranks, hang.klass, hang.cause) == (
        (),
        (0, 1),
        "unknown",
        "all_ranks_wait",
    )
    assert hang.confidence.value == "low"


def test_dead_rank_is_the_culprit_of_those_that_wait_for_it() -> None:
    story = steady()

    story.tell(RankExited(1, pid_of(1), None, 9, "pidfd"))
    story.still(40.0, {0: ALL_REDUCE})

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("peer_lost", (1,), (0,))


def test_full_dev_shm_and_exhausted_files_are_resource_wait() -> None:
    story = steady()

    for _ in range(15):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(
            tree(1, story.now, wchan="mem_cgroup_handle_over_high", state="D"), stack(1, story.now, SLEEP)
        )
        story.wait(2.0)

    assert (story.hang().klass, story.hang().cause) == ("resource_wait", "memory_high")


def test_late_rank_is_named_when_the_others_wait_at_rendezvous() -> None:
    story = Story(world=3)
    join = (
        *TRAIN,
        "init_process_group torch/distributed/distributed_c10d.py:1800",
        "rendezvous torch/distributed/rendezvous.py:278",
    )

    story.still(60.0, {0: join, 1: SLEEP, 2: join})

    assert (story.hang().klass, story.hang().ranks, story.hang().waiting_ranks) == (
        "rendezvous",
        (1,),
        (0, 2),
    )


def test_ranks_that_never_appeared_are_named_after_a_minute() -> None:
    story = Story(world=2)
    story.engine.job.ranks.world_size = 4
    join = (*TRAIN, "init_process_group torch/distributed/distributed_c10d.py:1800")

    story.still(50.0, {0: join, 1: join})
    early = story.findings()
    story.still(40.0, {0: join, 1: join})

    assert early == []
    found = story.the("held-up")
    assert (found.klass, found.cause, found.ranks) == ("rendezvous", "ranks_missing", (2, 3))


def test_without_stacks_nothing_is_claimed_early_and_the_reason_is_told() -> None:
    story = steady()
    story.engine.job.ranks[1].stack = None
    story.engine.job.ranks[1].reading = None
    story.tell(SourceFailed(1, "pyspy", "ptrace is not permitted", "add CAP_SYS_PTRACE"))

    for _ in range(30):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE), tree(1, story.now))
        story.wait(2.0)

    assert story.findings() == []
    assert any("ptrace" in line.reason for line in story.engine.not_checked())


def test_idle_command_without_ranks_is_no_hang_until_its_log_shows_training() -> None:
    from dataclasses import replace

    from tests.facts import found

    story = Story(world=1)
    story.tell(replace(found(0, 1), distributed=False))
    story.engine.job.ranks[0].distributed = False
    poll = ("<module> /app/submit.py:9", "wait_for_job /app/submit.py:5")

    story.still(120.0, {0: poll})
    idle = story.findings()
    story.tell(Iteration(0, 3, 10, "iteration 3"))
    story.still(60.0, {0: poll})

    assert idle == []
    assert story.hang().ranks == (0,)


def test_rank_that_left_early_with_exit_code_0_is_named() -> None:
    story = steady()

    story.tell(RankExited(1, pid_of(1), 0, None, "pidfd"))
    story.still(60.0, {0: ALL_REDUCE})

    assert (story.hang().klass, story.hang().ranks, story.hang().cause) == (
        "peer_lost",
        (1,),
        "rank_left_early",
    )


def test_wait_for_a_slow_service_is_given_a_minute_and_a_half() -> None:
    story = steady()
    rollout = (
        *TRAIN,
        "generate /app/rollout.py:5",
        "getresponse python3.11/http/client.py:1374",
        "readinto python3.11/socket.py:706",
    )

    story.still(80.0, {0: ALL_REDUCE, 1: rollout})
    early = story.findings()
    story.still(20.0, {0: ALL_REDUCE, 1: rollout})

    assert early == []
    found = story.the("held-up")
    assert (found.severity.value, found.klass, found.cause) == (
        "warning",
        "resource_wait",
        "external_service",
    )


def test_lock_below_a_client_of_http_is_a_wait_for_a_connection_of_its_pool() -> None:
    story = steady()
    pooled = (
        *TRAIN,
        "generate /app/rollout.py:5",
        "handle_request httpcore/_sync/connection_pool.py:232",
        "wait python3.11/threading.py:327",
    )
    for _ in range(30):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, wchan="futex_do_wait"), stack(1, story.now, pooled))
        story.wait(2.0)

    found = story.the("held-up")
    assert (found.klass, found.cause, found.ranks) == ("resource_wait", "no_connection_is_free", (1,))
    assert "has not even sent the request" in found.advice


def test_rank_that_hangs_in_an_exit_handler_is_in_teardown_by_its_missing_module_frame() -> None:
    story = steady()

    story.still(
        40.0, {0: ALL_REDUCE, 1: ("upload_last_metrics /app/metrics.py:9", "push /app/metrics.py:30")}
    )

    assert (story.hang().klass, story.hang().ranks) == ("teardown", (1,))


def test_rank_that_ended_with_a_status_nobody_could_read_is_named_with_less_confidence():
    story = steady()

    story.tell(RankExited(1, pid_of(1), None, None, "reaped before it could be read"))
    story.still(60.0, {0: ALL_REDUCE})

    assert (story.hang().klass, story.hang().ranks, story.hang().confidence.value) == (
        "peer_lost",
        (1,),
        "medium",
    )


def with_child_in_a_lock(lines: Sequence[str]) -> Story:
    story = steady()
    child = process(5001, ppid=pid_of(1), wchan="futex_wait_queue")
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, child), stack(1, story.now, lines))
        story.tell(
            stack(
                1,
                story.now,
                ("run python3.11/multiprocessing/process.py:108", "log /app/audit.py:12"),
                pid=5001,
            )
        )
        story.wait(1.0)
    return story


def test_forked_child_that_stands_in_a_lock_is_told_as_that() -> None:
    joins = (
        *TRAIN,
        "join python3.11/multiprocessing/process.py:149",
        "wait python3.11/multiprocessing/popen_fork.py:43",
        "poll python3.11/multiprocessing/popen_fork.py:27",
    )

    hang = with_child_in_a_lock(joins).hang()

    assert (hang.klass, hang.ranks, hang.cause) == ("lock_deadlock", (1,), "child_waits_for_lock")
    assert "5001" in hang.summary and "log (/app/audit.py:12)" in hang.summary


def test_child_in_a_lock_that_its_rank_does_not_wait_for_is_not_what_holds_it_up() -> None:
    hang = with_child_in_a_lock(SLEEP).hang()

    assert (hang.ranks, hang.cause) == ((1,), "not_in_collective")


def test_wait_for_a_child_that_works_is_no_lock() -> None:
    story = steady()
    waits = (*TRAIN, "run python3.11/subprocess.py:548", "wait python3.11/subprocess.py:1264")
    child = process(5001, ppid=pid_of(1), wchan="pipe_read")
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, child), stack(1, story.now, waits))
        story.tell(stack(1, story.now, ("main /app/upload.py:12",), pid=5001))
        story.wait(1.0)

    assert story.hang().klass == "peer_not_joined"
