"""The straggler detector on told facts: who is named and why, and the many healthy jobs of which nothing may
be said."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.detectors.training.straggler import StragglerDetector
from diag.detectors.training.straggler_samples import fisher, split
from diag.model import Finding, Placement
from diag.model.observations import (
    EnvironmentSeen,
    GpuSample,
    Iteration,
    ProcessSample,
    RankExited,
    RankFound,
    SaveFinished,
    SaveStarted,
    StackSample,
    ThreadStack,
)
from tests.facts import ALL_REDUCE, DATA, SLEEP, TICKS, TRAIN, Story, frames, pid_of, process, stack, tree

FORWARD = (*TRAIN, "forward_step /app/train.py:90", "forward /app/model.py:31")
STAGE_WAIT = (*TRAIN, "recv_forward megatron/core/pipeline_parallel/p2p_communication.py:207")

Stand = Callable[[int, int, random.Random], Sequence[str]]  # (rank, step, dice) -> stack


def often(waiting: float, where: Sequence[str] = FORWARD) -> Callable[[random.Random], Sequence[str]]:
    return lambda dice: ALL_REDUCE if dice.random() < waiting else where


def run(
    stand: Stand, *, world: int = 2, steps: int = 60, seconds: float = 2.0, seed: int = 1, command: str = "python train.py",
    story: Story | None = None, gpu: Callable[[int, random.Random], tuple[float, float]] | None = None, every: int = 1,
) -> Story:  # fmt: skip
    """A job in steady state: a sample of each rank's stack (and GPU) a step, a line of the log each `every`
    steps."""
    dice = random.Random(seed)
    if story is None:
        story = Story([StragglerDetector()], world=world)
        for rank in range(world):
            place = Placement(rank, rank, world, "node-0", pid_of(rank), TICKS, 0, world, "torchrun")
            story.tell(RankFound(rank, place, command))
    first = (story.engine.job.iteration or 0) + 1
    for step in range(first, first + steps):
        story.wait(seconds * (0.5 + dice.random()))
        for rank in range(world):
            story.tell(tree(rank, story.now, cpu=story.now), stack(rank, story.now, stand(rank, step, dice)))
            if gpu is not None:
                story.tell(gpu_sample(rank, *gpu(rank, dice)))
        if step % every == 0:
            story.tell(Iteration(world - 1, step, 10_000, f"iteration {step}", (("loss", 0.5),)))
    return story


def gpu_sample(index: int, busy: float, watts: float, *, clock: int = 1_980_000_000, pids: tuple[int, ...] = (),
               limit: float | None = 700.0) -> GpuSample:  # fmt: skip
    return GpuSample(
        None, index, f"GPU-{index}", "", "NVIDIA H200", busy, 1, 2, watts, limit, clock, 40.0, 0, pids
    )


def slow(ranks: Sequence[int], waiting: float = 0.8, where: Sequence[str] = SLEEP) -> Stand:
    return lambda rank, step, dice: often(0.02, where)(dice) if rank in ranks else often(waiting)(dice)


def the(story: Story) -> Finding:
    return story.the("straggler")


# -- found
# ---------------------------------------------------------------------------------------------------------------


def test_rank_that_is_never_found_waiting_while_its_peer_nearly_always_is_the_straggler() -> None:
    story = run(slow([1]), steps=40)

    found = the(story)
    assert (found.ranks, found.waiting_ranks, found.subject, found.severity.value) == (
        (1,),
        (0,),
        "rank 1",
        "warning",
    )
    assert (
        found.cause == "own_code"
        and "wait_for_leader" in found.summary
        and "of each step of" in found.summary
    )
    assert found.confidence.value == "medium"


def test_twelve_samples_are_enough_when_the_others_always_wait_and_ten_are_not() -> None:
    assert run(slow([1], 1.0), steps=11, seed=3).findings() == []
    assert the(run(slow([1], 1.0), steps=16, seed=3)).ranks == (1,)


def test_one_long_wait_between_fast_steps_is_no_share_of_each_step() -> None:
    """Rank 0 alone evaluates for 80 s once: samples of that are not those of the steps that are reported after it."""
    story = run(slow([], 1.0), steps=0)
    said = []
    for report in range(1, 8):
        for _ in range(40 if report == 4 else 1):
            story.wait(2.0 if report == 4 else 1.0)
            for rank in (0, 1):
                where = SLEEP if rank == 0 and report == 4 else ALL_REDUCE
                story.tell(tree(rank, story.now), stack(rank, story.now, where))
        step = 20 * report
        story.tell(Iteration(1, step, 10_000, f"iteration {step}", (("loss", 0.5),)))
        said += story.findings()

    assert said == []


def test_rank_that_becomes_slow_while_steps_are_reported_together_is_named_still() -> None:
    story = run(slow([], 0.9), steps=60, seconds=0.1, every=15)
    run(slow([1], 0.95), steps=150, seconds=1.0, every=15, story=story)

    assert the(story).ranks == (1,)


def test_one_of_eight_is_named_and_two_of_eight_together() -> None:
    one, two = run(slow([5]), world=8, steps=50), run(slow([2, 5], 0.9), world=8, steps=50)

    assert (the(one).ranks, the(one).subject) == ((5,), "rank 5")
    assert (the(two).ranks, the(two).subject) == ((2, 5), "job")


def test_rank_that_waits_for_its_batches_is_slow_by_data_loading() -> None:
    story = run(slow([0], where=DATA), steps=40)

    assert (the(story).ranks, the(story).cause) == ((0,), "data_loading")
    assert "dataloader.py" in the(story).summary
    assert "num_workers" in the(story).advice


def test_stack_and_gpu_that_agree_make_it_certain() -> None:
    story = run(
        slow([1]),
        steps=40,
        gpu=lambda rank, dice: (0.0, 127.0) if rank == 1 else (0.9 + dice.random() / 10, 131.0),
    )

    assert the(story).confidence.value == "high"
    assert any("131 W of 700 W" in item.excerpt for item in the(story).evidence)


def test_gpu_with_low_clocks_is_the_cause_when_all_run_the_same_code() -> None:
    story = Story([StragglerDetector()])
    dice = random.Random(4)
    for step in range(1, 40):
        story.wait(2.0)
        for rank in (0, 1):
            story.tell(tree(rank, story.now), stack(rank, story.now, FORWARD))
        story.tell(
            gpu_sample(0, 1.0, 140 if dice.random() < 0.8 else 600, pids=(pid_of(0),)),
            gpu_sample(1, 1.0, 420.0, clock=900_000_000, pids=(pid_of(1),)),
        )
        story.tell(Iteration(1, step, 100, "", (("loss", 1.0),)))

    assert (the(story).ranks, the(story).cause) == ((1,), "gpu_slow")
    assert "900 MHz, the others at 1980 MHz" in the(story).summary


def test_gpu_is_found_by_the_visible_devices_of_the_rank_where_the_driver_tells_no_pids() -> None:
    story = Story([StragglerDetector()])
    for rank in (0, 1):
        story.tell(EnvironmentSeen(rank, pid_of(rank), (("CUDA_VISIBLE_DEVICES", "5,4"),)))
    _train(story, (ALL_REDUCE, SLEEP), {4: (), 5: (), 0: (), 1: ()})

    # local rank 1 has GPU 4, and it agrees with the stacks
    assert (the(story).ranks, the(story).confidence.value) == ((1,), "high")


def test_gpus_alone_blame_nobody_where_it_cannot_be_seen_whose_work_they_do() -> None:
    story = Story([StragglerDetector()])
    _train(story, (FORWARD, SLEEP), {0: (), 1: ()}, idle=1)

    assert not any(finding.id == "straggler" for finding in story.findings())
    assert "whether the GPUs are shared" in {line.what for line in story.engine.not_checked()}


def test_work_of_a_neighbour_on_the_gpu_of_one_rank_makes_no_straggler_of_the_other() -> None:
    """Seen on 2 x H200: another job waited in NCCL on GPU 0, and rank 1 was said to hold up the others."""
    story = Story([StragglerDetector()])
    _train(story, (FORWARD, SLEEP), {0: (pid_of(0), 5996), 1: (pid_of(1),)}, idle=1)

    assert not any(finding.id == "straggler" for finding in story.findings())
    assert "whether the GPUs are shared" not in {line.what for line in story.engine.not_checked()}


def test_gpus_that_only_the_job_uses_do_blame_and_its_workers_on_them_are_the_jobs() -> None:
    story = Story([StragglerDetector()])
    worker = process(4321)
    _train(story, (FORWARD, SLEEP), {0: (pid_of(0), 4321), 1: (pid_of(1),)}, idle=1, children={0: (worker,)})

    assert the(story).ranks == (1,)


def _train(
    story: Story,
    stacks: Sequence[Sequence[str]],
    pids: dict[int, tuple[int, ...]],
    *,
    idle: int = 4,
    children: Mapping[int, tuple[ProcessSample, ...]] | None = None,
) -> None:
    """40 steps; all GPUs wait in NCCL but `idle` and those that the job does not use."""
    for step in range(1, 40):
        story.wait(2.0)
        for rank, where in enumerate(stacks):
            story.tell(tree(rank, story.now, *(children or {}).get(rank, ())), stack(rank, story.now, where))
        for index, users in pids.items():
            busy = 0.0 if index == idle or (index == 0 and idle == 4) else 1.0
            story.tell(gpu_sample(index, busy, 131.0 if busy else 90.0, pids=users))
        story.tell(Iteration(1, step, 100, "", (("loss", 1.0),)))


def test_straggler_within_a_pipeline_stage_is_found_by_its_own_stage() -> None:
    def stand(rank: int, step: int, dice: random.Random) -> Sequence[str]:
        if rank == 3:
            return often(0.05, SLEEP)(dice)
        return ALL_REDUCE if dice.random() < 0.7 else STAGE_WAIT if rank < 2 else FORWARD

    story = run(
        stand,
        world=4,
        steps=50,
        command="rlhf.py --pipeline_model_parallel_size 2 --tensor_model_parallel_size 2",
    )

    assert (the(story).ranks, the(story).waiting_ranks) == ((3,), (0, 1, 2))


def test_straggler_that_is_cured_is_withdrawn() -> None:
    story = run(slow([1]), steps=40)
    assert story.findings()

    run(lambda rank, step, dice: often(0.2)(dice), story=story, steps=250)

    assert story.findings() == []


def test_straggler_of_a_job_that_ended_well_is_still_told() -> None:
    story = run(slow([1]), steps=40)
    for rank in (0, 1):
        story.exit(rank, code=0)
    story.wait(30.0)

    assert the(story).ranks == (1,)


# -- silent
# --------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    world=st.sampled_from([2, 3, 4, 8]), waiting=st.floats(0.0, 0.95), noise=st.floats(0.0, 0.1), seed=st.integers(0, 10**6),
    every=st.sampled_from([1, 5]),
)  # fmt: skip
def test_healthy_jobs_whose_ranks_wait_alike_give_no_alarm(
    world: int, waiting: float, noise: float, seed: int, every: int
) -> None:
    dice = random.Random(seed)
    own = [min(1.0, max(0.0, waiting + dice.uniform(-noise, noise))) for _ in range(world)]

    story = run(
        lambda rank, step, dice: often(own[rank])(dice), world=world, steps=150, seed=seed, every=every
    )

    assert story.engine.opened_total == {}


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=st.floats(0.0, 0.6), last=st.floats(0.0, 0.6), seed=st.integers(0, 10**6), known=st.booleans(),
    tensor=st.sampled_from([1, 2]),
)  # fmt: skip
def test_pipeline_stages_that_wait_each_in_their_own_way_give_no_alarm(
    first: float, last: float, seed: int, known: bool, tensor: int
) -> None:
    def stand(rank: int, step: int, dice: random.Random) -> Sequence[str]:
        stage = rank // tensor
        return STAGE_WAIT if dice.random() < (first, 0.9, 0.7, last)[stage] else FORWARD

    flags = (
        f"rlhf.py --pipeline_model_parallel_size 4 --tensor_model_parallel_size {tensor}"
        if known
        else "train.py"
    )
    story = run(stand, world=4 * tensor, steps=120, seed=seed, command=flags)

    assert story.engine.opened_total == {}


def test_stages_of_one_rank_each_are_said_to_be_unchecked() -> None:
    story = run(
        lambda rank, step, dice: STAGE_WAIT if rank else FORWARD,
        command="rlhf.py --pipeline_model_parallel_size 2",
    )

    assert story.findings() == []
    assert [line.what for line in story.engine.not_checked()] == ["straggler"]


def test_hang_is_no_straggler_while_it_lasts_nor_when_it_heals() -> None:
    story = run(lambda rank, step, dice: often(0.3)(dice), steps=40)

    story.still(300.0, {0: ALL_REDUCE, 1: SLEEP})
    during = story.findings()
    run(lambda rank, step, dice: often(0.3)(dice), story=story, steps=40)

    assert during == []
    assert story.engine.opened_total == {}


def test_straggler_that_then_hangs_is_no_longer_said_to_be_slow() -> None:
    story = Story(world=2)  # all detectors
    run(slow([1]), steps=40, story=story)
    assert [finding.id for finding in story.findings()] == ["straggler"]

    seen = set()
    for _ in range(100):
        story.still(1.0, {0: ALL_REDUCE, 1: SLEEP}, step=1.0)
        seen.add(tuple(finding.id for finding in story.findings()))

    assert ("straggler",) in seen and ("held-up",) in seen
    assert all(len(ids) < 2 for ids in seen)


def test_save_and_evaluation_of_one_rank_between_steps_do_not_count() -> None:
    story = run(lambda rank, step, dice: often(0.3)(dice), steps=20)
    for _ in range(30):
        story.tell(SaveStarted(0, "saving checkpoint"))
        story.still(8.0, {0: (*TRAIN, "save /app/disk.py:9"), 1: ALL_REDUCE})
        story.tell(SaveFinished(0, "saved", "/out"))
        run(lambda rank, step, dice: often(0.3)(dice), story=story, steps=1)

    assert story.engine.opened_total == {}


def test_rank_0_that_evaluates_on_its_gpu_while_the_others_wait_in_a_barrier_on_the_cpu_is_not_turned_around() -> (
    None
):
    """GPU 0 is busy at low power (it generates), GPU 1 idle: by the GPUs alone rank 1 would be the slow one."""
    story = run(
        lambda rank, step, dice: FORWARD if rank == 0 else often(0.6)(dice), steps=30,
        gpu=lambda rank, dice: (1.0, 150.0) if rank == 0 else (0.0, 80.0),
    )  # fmt: skip

    assert [finding.ranks for finding in story.findings()] in ([], [(0,)])


def test_timer_that_waits_for_the_gpu_on_rank_0_only_makes_no_straggler_of_rank_1() -> None:
    sync = (*TRAIN, "stop_timer /app/train.py:55", "synchronize torch/cuda/__init__.py:1162")

    def stand(rank: int, step: int, dice: random.Random) -> Sequence[str]:
        return often(0.1)(dice) if rank else sync if dice.random() < 0.8 else FORWARD

    story = run(stand, steps=60, gpu=lambda rank, dice: (0.95, 400 + 200 * dice.random()))

    assert story.engine.opened_total == {}


def test_many_samples_of_few_long_steps_count_as_few() -> None:
    """Five steps of a minute, in which rank 1 happened to be late: five observations, however often one
    looked."""
    story = Story([StragglerDetector()])
    for step in range(1, 7):
        story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})
        story.tell(Iteration(1, step, 100, "", (("loss", 1.0),)))

    assert story.engine.opened_total == {}


def test_new_attempt_starts_with_no_samples() -> None:
    story = run(slow([1], 1.0), steps=10)
    story.tell(RankExited(1, pid_of(1), 1, None, "pidfd"))
    for rank in (0, 1):
        story.tell(RankFound(rank, Placement(rank, rank, 2, "node-0", 5000 + rank, TICKS, 0, 2, "torchrun")))
    for step in range(1, 8):
        story.wait(2.0)
        for rank, lines in ((0, ALL_REDUCE), (1, SLEEP)):
            main = ThreadStack(5000 + rank, "MainThread", frames(*lines))
            story.tell(StackSample(rank, 5000 + rank, (main,), "pyspy", story.now))
        story.tell(Iteration(1, step, 100, "", (("loss", 1.0),)))

    assert story.engine.opened_total == {}


# -- the test itself
# -----------------------------------------------------------------------------------------------------


def test_exact_test_gives_the_textbook_value() -> None:
    assert fisher(1, 10, 11, 14) == pytest.approx(0.001380, abs=1e-6)  # Fisher's table of 1, 9, 11, 3


def test_half_of_the_ranks_are_never_the_stragglers() -> None:
    waits = {rank: [rank >= 2] * 100 for rank in range(4)}

    assert split(waits, 1e-6, 0.25, 0.25) is None


@pytest.mark.parametrize("waiting", [0.25, 0.5, 0.95])
def test_rate_of_false_alarms_of_the_split_is_below_what_is_stated(waiting: float) -> None:
    dice = random.Random(7)
    windows = 3000

    alarms = sum(
        split({rank: [dice.random() < waiting for _ in range(40)] for rank in range(4)}, 1e-3, 0.25, 0.5)
        is not None
        for _ in range(windows)
    )

    assert alarms / windows <= 1e-3
