"""What a job has shown of itself lengthens what it is given; what it has not shown, and a fault that healed,
does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import EpochStarted, Iteration, PhaseMarked, SaveFinished, SaveStarted
from diag.sources.logs import output
from diag.state.silences import Silences
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, Story, pid_of, process, stack, tree

INIT = (
    "<module> /app/train.py:2",
    "init_distributed deepspeed/comm/comm.py:910",
    "TorchBackend.__init__ deepspeed/comm/torch.py:218",
    "TorchBackend.init_process_group deepspeed/comm/torch.py:282",
    "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83",
    "_time_logger.<locals>.wrapper torch/distributed/c10d_logger.py:97",
    "init_process_group torch/distributed/distributed_c10d.py:1892",
    "_env_rendezvous_handler torch/distributed/rendezvous.py:280",
    "_create_c10d_store torch/distributed/rendezvous.py:199",
)
# The same job where the build of an operator left its lock behind (deepspeed 0.19.8, torch 2.13, two gloo
# ranks):
BATON = (
    "<module> /app/train.py:2",
    "init_distributed deepspeed/comm/comm.py:910",
    "TorchBackend.__init__ deepspeed/comm/torch.py:207",
    "build_shm_op deepspeed/comm/torch.py:51",
    "OpBuilder.load deepspeed/ops/op_builder/builder.py:566",
    "OpBuilder.jit_load deepspeed/ops/op_builder/builder.py:613",
    "load torch/utils/cpp_extension.py:1927",
    "_jit_compile torch/utils/cpp_extension.py:2400",
    "FileBaton.wait torch/utils/file_baton.py:50",
)
IMPORTS = ("<module> /app/train.py:1", "<module> deepspeed/__init__.py:26", "load_config /app/config.py:7")
ACCELERATOR = "[2026-11-20 23:50:12,101] [INFO] [real_accelerator.py:260:get_accelerator] Setting ds_accelerator to cuda (auto detect)"
CDB = "[2024-06-11 00:23:36,254] [INFO] [comm.py:637:init_distributed] cdb=None"


def log(story: Story, *lines: str) -> None:
    payload = {"stream": "stderr", "lines": [[line, 0] for line in lines]}
    story.tell(*output.parse(Record(output.SOURCE, payload)))


def steady(story: Story, first: int, last: int, *, seconds: float = 0.5) -> None:
    for number in range(first, last + 1):
        story.wait(seconds)
        for rank in range(story.world):
            place = (*TRAIN, f"forward /app/model.py:{number}")
            story.tell(tree(rank, story.now, cpu=story.now), stack(rank, story.now, place))
        story.tell(Iteration(story.world - 1, number, 1000, f"iteration {number}"))


def seconds_to_hang(story: Story, stacks: dict[int, Sequence[str]], limit: float = 600.0) -> float:
    since = story.now
    while not story.findings() and story.now - since < limit:
        story.still(1.0, stacks, step=1.0)
    return story.now - since


def found_after(story: Story) -> float:
    return seconds_to_hang(story, {0: ALL_REDUCE, 1: SLEEP})


def test_wait_of_all_ranks_for_each_other_is_given_five_minutes_where_no_steps_are_made() -> None:
    """How long a step takes tells nothing of the pauses of an evaluation."""
    story = Story()
    steady(story, 1, 12)
    story.tell(PhaseMarked(0, "eval", "***** Running Evaluation *****"))

    assert seconds_to_hang(story, dict.fromkeys(range(2), ALL_REDUCE)) > 290.0


# -- stuck before the first step
# --------------------------------------------------------------------------------------


def test_deepspeed_rank_that_does_not_come_to_init_distributed_is_named_while_the_other_waits_in_it() -> None:
    story = Story()
    log(story, ACCELERATOR, ACCELERATOR, CDB)

    after = seconds_to_hang(story, {0: INIT, 1: IMPORTS})

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("rendezvous", (1,), (0,))
    assert after <= 60
    assert (
        "before the process group was up" in hang.summary
        and "rank 0 waits in init_distributed" in hang.summary
    )
    assert story.engine.job.phase == "rendezvous"
    assert "cdb=None" in story.engine.job.phases.line


def test_deepspeed_ranks_that_meet_at_different_addresses_are_called_stuck_in_rendezvous() -> None:
    story = Story()
    log(story, ACCELERATOR, ACCELERATOR)

    seconds_to_hang(story, {0: INIT, 1: INIT})

    assert story.hang().klass == "rendezvous"
    assert "Setting ds_accelerator to cuda" in story.engine.job.phases.line
    assert "Setting ds_accelerator to cuda" in story.hang().summary


def test_deepspeed_stuck_at_the_accelerator_line_by_a_stale_build_lock_is_told_as_that() -> None:
    story = Story()
    log(story, ACCELERATOR, ACCELERATOR)

    seconds_to_hang(story, {0: BATON, 1: BATON})

    assert (story.hang().klass, story.hang().cause) == ("lock_deadlock", "stale_file_lock")


def test_operator_that_is_built_in_init_distributed_on_a_crowded_machine_is_no_hang() -> None:
    """Recorded with 18 runnable processes on 2 cores: each cc1plus had 10 % of one."""
    story = Story()
    log(story, ACCELERATOR, CDB)
    build = (*INIT[:3], "build_shm_op deepspeed/comm/torch.py:33", "OpBuilder.jit_load op_builder/builder.py:587",
             "_run_ninja_build torch/utils/cpp_extension.py:2893", "run subprocess.py:550")  # fmt: skip

    for second in range(0, 300, 2):
        compiler = process(6001, comm="cc1plus", ppid=pid_of(0), cpu=second * 0.1)
        story.tell(tree(0, story.now, compiler), stack(0, story.now, build))
        story.tell(tree(1, story.now), stack(1, story.now, BATON))
        story.wait(2.0)

    assert story.findings() == []
    assert story.engine.job.phase == "rendezvous"


def test_import_of_deepspeed_is_no_collective() -> None:
    importing = (
        "<module> /app/train.py:1",
        "<module> deepspeed/__init__.py:26",
        "<module> deepspeed/comm/comm.py:31",
    )
    story = Story()
    story.tell(
        stack(0, story.now, importing),
        stack(0, story.now, (*INIT[:3], "build_shm_op deepspeed/comm/torch.py:33")),
    )

    assert story.engine.job.phase == "rendezvous"


def test_import_of_deepspeed_by_a_worker_in_steady_state_does_not_bring_back_the_start() -> None:
    story = Story()
    steady(story, 1, 10)

    log(story, ACCELERATOR)

    assert story.engine.job.phase == "steady"
    assert 15 <= found_after(story) <= 30


# -- budgets that grow
# -------------------------------------------------------------------------------------------------


def test_job_without_history_is_found_in_the_same_time_as_ever() -> None:
    story = Story()
    steady(story, 1, 30)

    assert 15 <= found_after(story) <= 20


def test_every_tenth_step_that_takes_a_minute_is_waited_for_the_next_time_and_all_times_after() -> None:
    story = Story()
    steady(story, 1, 9)
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})  # an evaluation inside of the loop that no line tells
    seen_the_first_time = bool(story.findings())

    for tenth in range(10, 50, 10):
        steady(story, tenth, tenth + 9)
        story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})
        assert story.findings() == [], f"after iteration {tenth + 9}"

    assert seen_the_first_time  # nothing had told that it was to be expected
    steady(story, 50, 55)
    assert 60 < found_after(story) <= 200  # a real one is found still


@settings(max_examples=20, deadline=None)
@given(
    period=st.integers(2, 20), seconds=st.floats(10.0, 110.0), ratios=st.lists(st.floats(0.7, 1.4), min_size=3, max_size=5),
)  # fmt: skip
def test_silence_that_comes_back_every_so_many_steps_is_no_hang_from_its_second_time_on(
    period: int, seconds: float, ratios: list[float]
) -> None:
    story = Story()
    number = 1
    for turn, ratio in enumerate([1.0, *ratios]):
        steady(story, number, number + period - 1)
        number += period
        opened = story.engine.opened_total.total()
        story.still(seconds * ratio, {0: ALL_REDUCE, 1: SLEEP})
        assert turn == 0 or story.engine.opened_total.total() == opened


def test_single_long_step_that_did_not_come_back_is_forgotten() -> None:
    story = Story()
    steady(story, 1, 9)
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})

    steady(story, 10, 110)

    assert 15 <= found_after(story) <= 20


def test_fault_of_an_hour_that_healed_does_not_buy_the_next_hang_two_hours() -> None:
    story = Story()
    steady(story, 1, 9)
    story.still(3600.0, {0: ALL_REDUCE, 1: SLEEP}, step=5.0)
    steady(story, 10, 12)

    assert found_after(story) <= 250


def test_time_in_which_a_rank_was_stopped_teaches_nothing() -> None:
    story = Story()
    steady(story, 1, 9)
    story.still(100.0, {0: ALL_REDUCE, 1: SLEEP}, trees={1: {"state": "T"}})
    steady(story, 10, 15)

    assert 15 <= found_after(story) <= 20


def test_time_in_which_diag_did_not_look_teaches_nothing() -> None:
    story = Story()
    steady(story, 1, 9)
    story.wait(100.0)
    steady(story, 10, 15)

    assert 15 <= found_after(story) <= 20


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            SaveStarted(0, "saving checkpoint at iteration 10 to /out", "/out"),
            SaveFinished(0, "saved", "/out"),
        ),
        (
            PhaseMarked(0, "eval", "***** Running Evaluation *****"),
            PhaseMarked(0, "steady", "validation loss at iteration 10"),
        ),
    ],
    ids=["save", "eval"],
)
def test_save_or_evaluation_is_given_what_the_one_before_it_took(
    begin: SaveStarted, end: SaveFinished
) -> None:
    story = Story()
    stuck: dict[int, Sequence[str]] = {0: ALL_REDUCE, 1: (*TRAIN, "write /app/disk.py:3")}
    steady(story, 1, 10)
    story.tell(begin)
    assert 40 <= seconds_to_hang(story, stuck) <= 45  # the first one: the default of today
    story.still(55.0, stuck)
    story.tell(end)
    steady(story, 11, 20)
    story.tell(begin)

    story.still(150.0, stuck)
    assert story.findings() == []

    assert seconds_to_hang(story, stuck) <= 60  # twice the silence that it came through


def test_first_step_learns_nothing_from_the_silences_before_it() -> None:
    story = Story()
    log(story, "[INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2")
    story.still(25.0, {0: DATA, 1: DATA})
    story.tell(EpochStarted(0, 0, "[INFO:swift] The training of Epoch 0 starts..."))

    assert 30 <= seconds_to_hang(story, {0: ALL_REDUCE, 1: DATA}) <= 35


# -- the history itself
# ------------------------------------------------------------------------------------------------


def test_two_alike_count_in_full_and_one_alone_for_so_long_at_most() -> None:
    history = Silences()
    history.ended("steady", 0.5, 1)
    history.ended("steady", 500.0, 10)
    assert history.longest("steady", 11) == 120.0

    history.ended("steady", 400.0, 20)
    assert history.longest("steady", 21) == 500.0
    assert history.longest("eval", 21) == 0.0


def test_lone_one_is_kept_for_as_long_as_its_return_may_be_due() -> None:
    history = Silences()
    history.ended("steady", 0.1, 1)
    history.ended("steady", 60.0, 101)

    assert history.longest("steady", 301) == 60.0
    assert history.longest("steady", 400) == 0.0


def with_pauses(story: Story, stacks: Sequence[Sequence[str]], worker: bool) -> None:
    """Rank 1 is silent for 35 s three times, then for a minute; what ends each silence first is bytes, its
    own or a worker's."""
    for number, pause in enumerate((35, 35, 35, 60), 1):
        for second in range(pause):
            chars = (number if second else number - 1) << 30  # the bytes are seen a second before the stack
            child = (process(5001, comm="pt_data_worker", ppid=pid_of(1), chars=chars),) if worker else ()
            story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
            story.tell(tree(1, story.now, *child, chars=0 if worker else chars))
            if second:
                story.tell(stack(1, story.now, stacks[number - 1]))
            story.wait(1.0)
            assert story.findings() == []


def test_pauses_of_a_save_count_for_the_next_one_of_the_same_save() -> None:
    story = Story(world=2)
    steady(story, 1, 10)

    with_pauses(
        story,
        [(*TRAIN, "save_checkpoint swift/megatron/trainers/base.py:774", "write /app/nfs.py:3")] * 4,
        worker=False,
    )


def test_pauses_of_an_evaluation_count_for_the_next_one_though_its_workers_stir_before_its_stack_moves() -> (
    None
):
    story = Story(world=2)
    steady(story, 1, 10)
    story.tell(PhaseMarked(1, "eval", "Evaluate:  10%|#    | 1/10 [00:01<00:09,  1.00s/it]"))

    with_pauses(
        story, [(*TRAIN, f"evaluate /app/eval.py:{number}", *DATA[3:]) for number in range(4)], worker=True
    )
