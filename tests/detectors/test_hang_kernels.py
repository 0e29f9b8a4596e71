"""A kernel that does not end on one rank's GPU, against NCCL's on others: figures of GPM recorded beside real
collectives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors.hang.endless_kernel import endless
from diag.detectors.hang.kernels import Kernel
from diag.model import Finding
from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder, GpuSample, Iteration
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_evidence import GPU_WAIT, gpu, quiet
from tests.facts import ALL_REDUCE, TRAIN, Story, pid_of, stack, tree

CAPTURES = Path(__file__).parents[1] / "captures" / "gpu"
WAITS = [json.loads(line) for line in (CAPTURES / "gpm_waits.jsonl").read_text().splitlines()]
DRILLS = [json.loads(line) for line in (CAPTURES / "gpm_drills.jsonl").read_text().splitlines()]
SMS = 132  # of the H200 of the captures
Figures = tuple[float | None, float | None]  # shares of the SMs and of the warps, in percent


def recorded(what: str, index: int, number: int = 0) -> Figures:
    row = [row for row in WAITS if row["what"] == what][number]
    return row["gpus"][index]["2"], row["gpus"][index]["3"]


STUCK = recorded("rank 1 stuck, one block", 1)
NCCL = recorded("rank 1 stuck, one block", 0)
SMALL = recorded("rank 1 absent from small all_reduce", 0)
ALL_TO_ALL = recorded("rank 1 absent from a2a", 0)
WITHOUT: Figures = (None, None)


def of(blocks: int, warps: float) -> Figures:
    """What GPM would say of so many blocks, each on an SM of its own."""
    return 100 * blocks / SMS, round(100 * blocks * warps / (64 * SMS), 4)


def told(rank: int, figures: Figures, watts: float = 124.0, sms: int | None = SMS) -> GpuSample:
    busy, held = (None if value is None else value / 100 for value in figures)
    return replace(gpu(rank, 1.0, watts), sm_utilization_ratio=busy, sm_occupancy_ratio=held, sm_count=sms)


def hang(
    *ranks: Figures, sms: int | None = SMS, stacks: Sequence[Sequence[str]] = (), story: Story | None = None
) -> Finding:
    story = story or steady(len(ranks))
    lines = dict(enumerate(stacks or [GPU_WAIT] * len(ranks)))
    quiet(story, lines, lambda _: [told(rank, figures, sms=sms) for rank, figures in enumerate(ranks)])
    return story.hang()


def blames_nobody(finding: Finding) -> bool:
    return (finding.klass, finding.cause, finding.ranks) == ("unknown", "all_ranks_wait", ())


# --- told
# ----------------------------------------------------------------------------------------------------------


def test_kernel_of_one_warp_that_does_not_end_is_told_from_nccls_by_its_figures() -> None:
    found = hang(NCCL, STUCK)

    assert (found.klass, found.ranks, found.waiting_ranks, found.cause) == (
        "gpu_side",
        (1,),
        (0,),
        "kernel_does_not_end",
    )
    assert found.confidence.value == "medium"
    assert "rank 1 has waited in main (/app/train.py:76), inside synchronize" in found.summary
    assert "for its GPU, which runs a kernel that does not end" in found.summary
    assert "cuda-gdb" in found.advice and str(pid_of(1)) in found.advice
    assert (
        "GPU 1 runs a kernel of 1 warp on 1 of 132 SMs, the others wait in NCCL's of 17 warps on 24 of 132 SMs"
        in [item.excerpt for item in found.evidence if item.rank == 1 and item.kind == "nvml"]
    )


def test_number_of_sms_is_not_said_where_the_gpu_does_not_tell_it() -> None:
    found = hang(NCCL, STUCK, sms=None)

    assert found.ranks == (1,)
    assert any(
        "1 warp on 0.76 % of the SMs, the others wait in NCCL's of 17 warps on 18 % of the SMs"
        in item.excerpt
        for item in found.evidence
    )


@pytest.mark.parametrize(
    "wait",
    [
        NCCL,
        SMALL,
        ALL_TO_ALL,
        recorded("rank 1 absent from all_gather", 0),
        recorded("rank 1 absent from reduce_scatter", 0),
        (2.2727, 0.5682),
    ],
)
def test_every_wait_in_nccl_that_was_recorded_is_known_as_one(wait: Figures) -> None:
    assert hang(wait, STUCK, wait, wait).ranks == (1,)


def test_kernel_on_all_sms_that_does_not_end_is_none_of_nccls() -> None:
    assert hang(NCCL, NCCL, of(132, 8), NCCL).ranks == (2,)


def test_slow_kernel_is_given_as_long_as_a_hang_that_blames_nobody() -> None:
    story = steady(2)
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [told(0, NCCL), told(1, STUCK)], 50.0)

    assert story.findings() == []


# --- told because the recorder says that all are in one call
# ---------------------------------------------------------


def recorder(
    rank: int, at: float, op: str, ranks: tuple[int, ...], groups: Sequence[str] = ("0",)
) -> FlightRecorder:
    known = tuple(CollectiveGroup("nccl", name, f"pg{name}", ranks, 26, 25) for name in groups)
    calls = tuple(
        CollectiveEntry(
            "nccl",
            name,
            f"pg{name}",
            26,
            26,
            False,
            op,
            ((8,),),
            ((8,),),
            ("Float",),
            "scheduled",
            False,
            True,
            26,
            0.0,
        )
        for name in groups
    )
    return FlightRecorder(rank, at, "2.10", ("nccl",), known, calls, pid_of(rank))


def hang_in(op: str, *ranks: Figures, groups: Sequence[str] = ("0",), members: Sequence[int] = ()) -> Finding:
    story = steady(len(ranks))
    for _ in range(4):
        story.tell(
            *(
                recorder(rank, story.now, op, tuple(members or range(len(ranks))), groups)
                for rank in (members or range(len(ranks)))
            )
        )
        quiet(
            story,
            dict.fromkeys(range(len(ranks)), GPU_WAIT),
            lambda _: [told(rank, figures) for rank, figures in enumerate(ranks)],
            20.0,
        )
    return story.hang()


@pytest.mark.parametrize("op", ["all_reduce", "_all_gather_base", "_reduce_scatter_base"])
@pytest.mark.parametrize("kernel", [of(1, 4), of(1, 8), of(4, 16)])
def test_in_one_call_a_kernel_that_differs_from_the_others_is_not_that_calls(
    op: str, kernel: Figures
) -> None:
    found = hang_in(op, NCCL, NCCL, kernel, NCCL)

    assert (found.ranks, found.cause, found.confidence.value) == ((2,), "kernel_does_not_end", "medium")


def test_in_an_all_to_all_ranks_differ_by_what_they_send() -> None:
    assert blames_nobody(hang_in("all_to_all_single", NCCL, NCCL, of(1, 8), NCCL))


def test_in_one_call_a_kernel_that_may_hold_nccls_beside_another_is_not_blamed() -> None:
    assert blames_nobody(hang_in("all_reduce", NCCL, NCCL, of(25, 16.4), NCCL))


def test_in_one_call_a_kernel_of_which_nccl_has_one_is_not_blamed() -> None:
    assert blames_nobody(hang_in("all_reduce", NCCL, NCCL, SMALL, NCCL))


def test_calls_pending_in_two_groups_may_have_two_kernels() -> None:
    assert blames_nobody(hang_in("all_reduce", NCCL, NCCL, of(1, 8), NCCL, groups=("0", "1")))


def test_without_a_recorder_a_kernel_that_nccl_may_have_is_not_blamed() -> None:
    assert blames_nobody(hang(NCCL, NCCL, of(1, 8), NCCL))


# --- silent
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks",
    [
        (NCCL, NCCL, NCCL, NCCL),
        (ALL_TO_ALL, NCCL, SMALL, NCCL),  # MoE: each in a group of its own
        (
            (0.7567, 0.1064),
            (0.7573, 0.1065),
            (0.7573, 0.1065),
            (2.2727, 0.5682),
        ),  # as three ranks waited for one without data
        (STUCK, STUCK, NCCL, NCCL),  # half of them: which half is not known
        (STUCK, STUCK, STUCK, NCCL),
        (STUCK, STUCK),
        (NCCL, STUCK, WITHOUT, NCCL),
        (WITHOUT, WITHOUT),
        (NCCL, (0.7573, None)),
        (of(24, 32), STUCK, NCCL, NCCL),  # one is neither
        ((0.0, 0.0), NCCL),
    ],
)
def test_nobody_is_blamed(ranks: tuple[Figures, ...]) -> None:
    assert blames_nobody(hang(*ranks))


def test_ranks_that_wait_in_different_places_are_not_compared() -> None:
    assert blames_nobody(hang(NCCL, STUCK, stacks=(GPU_WAIT, ALL_REDUCE)))


def test_recorder_that_has_some_in_another_call_forbids_to_compare() -> None:
    assert blames_nobody(hang_in("all_reduce", NCCL, NCCL, NCCL, STUCK, members=(0, 1)))


def test_some_of_a_job_whose_other_nodes_nobody_compared_is_less_sure() -> None:
    found = hang(NCCL, STUCK, story=steady_on_the_first_of_two_nodes())

    assert (found.ranks, found.confidence.value) == ((1,), "low")


def steady_on_the_first_of_two_nodes() -> Story:
    story = Story(world=4, nodes=2)
    for number in range(1, 11):
        story.wait(0.5)
        for rank in range(2):
            story.tell(
                tree(rank, story.now, cpu=number * 0.5),
                stack(rank, story.now, (*TRAIN, f"forward /app/model.py:{number}")),
            )
        story.tell(Iteration(1, number, 100, f"iteration {number}"))
    return story


def test_two_processes_on_one_gpu_share_its_figures_and_tell_nothing() -> None:
    story = steady(2)
    quiet(
        story,
        dict.fromkeys(range(2), GPU_WAIT),
        lambda _: [told(0, NCCL), replace(told(1, STUCK), pids=(pid_of(1), 7000))],
    )

    assert blames_nobody(story.hang())


def test_idle_gpu_is_still_the_one_to_blame() -> None:
    story = steady(3)
    quiet(
        story,
        dict.fromkeys(range(3), GPU_WAIT),
        lambda _: [told(0, NCCL), told(1, NCCL), replace(told(2, (0.0, 0.0)), utilization_ratio=0.0)],
    )

    found = story.hang()
    assert (found.ranks, found.cause) == ((2,), "gpu_idle_among_waiting")


@pytest.mark.parametrize(
    "noise",
    [
        lambda number: (0.757 + 0.3 * (number % 3), 0.0118),
        lambda number: (0.757, 0.0118 + 0.01 * (number % 2)),
        lambda number: DRILLS_OF_RANK_0[number % len(DRILLS_OF_RANK_0)],
    ],
)
def test_figures_that_move_are_of_work(noise: Callable[[int], Figures]) -> None:
    story = steady(2)
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda number: [told(0, NCCL), told(1, noise(number))])

    assert blames_nobody(story.hang())


def figures(row: dict[str, list[dict[str, float]]], rank: int) -> Figures:
    return row["gpus"][rank]["2"], row["gpus"][rank]["3"]


TRAINING = [row for row in DRILLS if row["util"] != [100, 100, 0, 100]]
DATA_HANG = [row for row in DRILLS if row["util"] == [100, 100, 0, 100]]
DRILLS_OF_RANK_0 = [figures(row, 0) for row in TRAINING]


def test_training_that_was_recorded_has_no_kernel_that_stands() -> None:
    for rank in range(4):
        series = [told(rank, figures(row, rank)) for row in TRAINING]
        assert len(series) > 20
        assert [Kernel.of(series[at : at + 4]) for at in range(len(series) - 3)] == [None] * (len(series) - 3)


def test_ranks_that_wait_for_one_without_data_are_all_in_a_kernel_that_may_be_nccls() -> None:
    kernels = {rank: Kernel.of([told(rank, figures(row, rank)) for row in DATA_HANG]) for rank in (0, 1, 3)}

    assert [str(kernel) for kernel in kernels.values()] == [
        "9 warps on 1 of 132 SMs",
        "9 warps on 1 of 132 SMs",
        "16 warps on 3 of 132 SMs",
    ]
    assert endless(kernels, one_call=False) == ()
    assert endless({**kernels, 2: None}, one_call=True) == ()


def test_recorded_compute_kernel_is_no_kernel_that_stands_beside_flat_low_power() -> None:
    """300 matrix products: 97 % of the SMs, and 394 W, which is work."""
    watts = [row["w"][1] for row in WAITS if row["what"] == "rank 1 computes fp32 matmul"]
    story = steady(2)
    busy = recorded("rank 1 computes fp32 matmul", 1)
    quiet(
        story,
        dict.fromkeys(range(2), GPU_WAIT),
        lambda _: [told(0, NCCL), told(1, busy, watts=watts[0])],
        400.0,
    )

    assert story.findings() == []
