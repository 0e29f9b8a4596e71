"""What GPUs, the driver, the network and the watchdog add to a hang: when they decide, when they agree, when
they forbid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from diag.model import Record
from diag.model.observations import (
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    GpuSample,
    Observation,
    RasCommunicator,
    RasMissing,
    RasRank,
    RasReading,
    ThreadStack,
)
from diag.sources.host import kmsg
from diag.sources.logs import nccl_log, output
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, frames, pid_of, stack, tree

GPU_WAIT = ("<module> /app/train.py:83", "main /app/train.py:76", "synchronize torch/cuda/__init__.py:1162")
LONG = 90.0


def gpu(rank: int, used: float, watts: float) -> GpuSample:
    return GpuSample(
        None,
        rank,
        f"GPU-{rank}",
        f"00000000:00:0{rank + 6}.0",
        "NVIDIA H200",
        used,
        0,
        0,
        watts,
        700.0,
        0,
        39.0,
        0,
        (pid_of(rank),),
    )


def quiet(
    story: Story,
    stacks: dict[int, Sequence[str]],
    gpus: Callable[[int], Sequence[GpuSample]],
    seconds: float = LONG,
) -> None:
    for number in range(int(seconds / 2)):
        for rank, lines in stacks.items():
            story.tell(tree(rank, story.now), stack(rank, story.now, lines))
        story.tell(*gpus(number))
        story.wait(2.0)


def said(story: Story, *lines: str, rank: int | None = None) -> None:
    payload = {"stream": "stdout", "lines": [[line, 0] for line in lines]}
    story.tell(*output.parse(Record("output", payload, rank=rank)))


# --- GPUs
# --------------------------------------------------------------------------------------------------------


def test_idle_gpu_among_spinning_ones_is_the_culprit_where_all_stacks_wait() -> None:
    story = steady(4)
    used = (1.0, 1.0, 0.0, 1.0)
    quiet(
        story,
        dict.fromkeys(range(4), GPU_WAIT),
        lambda _: [gpu(rank, used[rank], 126.0) for rank in range(4)],
    )

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks, hang.cause) == (
        "gpu_side",
        (2,),
        (0, 1, 3),
        "gpu_idle_among_waiting",
    )
    assert hang.confidence.value == "medium"
    assert any("GPU 2 0 % at 126 W of 700 W" in item.excerpt for item in hang.evidence)


def test_all_gpus_spinning_blames_nobody_and_says_so() -> None:
    story = steady(2)
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [gpu(0, 1.0, 126.0), gpu(1, 1.0, 123.0)])

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.cause) == ("unknown", (), "all_ranks_wait")


def test_gpu_whose_power_moves_computes_and_its_job_is_not_hung() -> None:
    story = steady(2)
    both = dict.fromkeys(range(2), GPU_WAIT)
    quiet(story, both, lambda number: [gpu(0, 1.0, 126.0), gpu(1, 1.0, 430.0 + 60 * (number % 3))], 400.0)

    assert story.findings() == []


def test_work_of_a_neighbour_on_a_ranks_gpu_does_not_hide_that_the_job_hangs() -> None:
    """Seen on 2 x H200: 519 W of another job on the GPU of a rank that waited."""
    story = steady(2)
    beside = replace(gpu(0, 1.0, 519.0), pids=(pid_of(0), 5996))
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [beside, gpu(1, 1.0, 126.0)])

    found = story.hang()
    assert not any("519 W" in item.excerpt for item in found.evidence)


def test_rank_in_its_own_code_whose_gpu_computes_is_not_hung() -> None:
    story = steady(2)
    quiet(
        story,
        {0: ALL_REDUCE, 1: SLEEP},
        lambda number: [gpu(0, 1.0, 126.0), gpu(1, 1.0, 500.0 + 50 * (number % 2))],
        300.0,
    )

    assert story.findings() == []


def test_gpus_that_agree_with_the_stacks_are_in_the_evidence() -> None:
    story = steady(2)
    quiet(story, {0: GPU_WAIT, 1: SLEEP}, lambda _: [gpu(0, 1.0, 126.0), gpu(1, 0.0, 122.0)])

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.confidence.value) == ("peer_not_joined", (1,), "high")
    assert [item.rank for item in hang.evidence if item.kind == "nvml"] == [1, 0]


def test_gpu_without_power_reading_is_not_called_spinning() -> None:
    story = steady(2)
    without = GpuSample(None, 0, "GPU-0", "", "", 1.0, None, None, None, None, None, None, None, (pid_of(0),))
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [without, gpu(1, 0.0, 122.0)])

    assert story.hang().ranks == ()


# driver 580.159.04, H200; the number of the error is replaced
XID = "[  482.229132] NVRM: Xid (PCI:0000:00:07): {}, pid={}, name=python3, channel 0x0000000a"


def test_hardware_xid_on_a_waiting_ranks_gpu_is_the_cause() -> None:
    story = steady(2)
    story.tell(gpu(0, 1.0, 126.0), gpu(1, 0.0, 80.0))
    story.tell(*kmsg.parse(Record("kmsg", {"lines": [XID.format(79, "'<unknown>'")]})))
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [])

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.cause, hang.confidence.value) == ("gpu_side", (1,), "xid_79", "high")
    assert "Xid 79" in hang.summary and "Xid 79" in hang.advice


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 94, 63])
def test_xid_of_the_program_blames_no_gpu(xid: int) -> None:
    story = steady(2)
    story.tell(gpu(0, 1.0, 126.0), gpu(1, 0.0, 80.0))
    story.tell(*kmsg.parse(Record("kmsg", {"lines": [XID.format(xid, pid_of(1))]})))
    quiet(story, dict.fromkeys(range(2), GPU_WAIT), lambda _: [])

    assert story.hang().klass == "unknown"


def test_xid_without_a_hang_is_no_hang() -> None:
    story = steady(2)
    story.tell(*kmsg.parse(Record("kmsg", {"lines": [XID.format(79, pid_of(1))]})))
    story.wait(2.0)

    assert [finding.id for finding in story.findings()] == ["gpu-fault"]


@pytest.mark.parametrize(
    "payload", [None, {}, {"lines": 5}, {"lines": [None, 7, "NVRM: Xid (PCI:", "x" * 100_000]}]
)
def test_kernel_log_that_is_none_raises_nothing(payload: object) -> None:
    assert all(
        fact.__class__.__name__ in ("Unparsed", "KernelLine") for fact in kmsg.parse(Record("kmsg", payload))
    )


# --- network
# -----------------------------------------------------------------------------------------------------

# the line of NCCL 2.20-2.27, src/transport/net_ib.cc, as read in its source; and one that is no error
COMPLETION = "NET/IB: Got completion from peer 10.0.0.2<42443> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0"
ACTIVE = "NET/IB : mlx5_0:1 Got async event : port active"


def nccl(rank: int, text: str) -> Sequence[Observation]:
    return nccl_log.read_line(f"node-0:{pid_of(rank)}:1 [0] transport/net_ib.cc:1 NCCL WARN {text}", None)


def test_network_error_that_nccl_printed_is_the_cause_where_all_wait() -> None:
    story = steady(2)
    story.tell(*nccl(1, COMPLETION))
    quiet(story, dict.fromkeys(range(2), ALL_REDUCE), lambda _: [])

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks, hang.cause) == (
        "network_transport",
        (1,),
        (0,),
        "transport_error",
    )
    assert any("status=12" in item.excerpt for item in hang.evidence)


def test_port_that_came_up_is_no_network_error() -> None:
    story = steady(2)
    story.tell(*nccl(1, ACTIVE))
    quiet(story, dict.fromkeys(range(2), ALL_REDUCE), lambda _: [])

    assert story.hang().klass == "unknown"


def test_network_error_does_not_overrule_a_rank_that_is_visibly_elsewhere() -> None:
    story = steady(2)
    story.tell(*nccl(0, COMPLETION))
    quiet(story, {0: ALL_REDUCE, 1: SLEEP}, lambda _: [])

    assert (story.hang().klass, story.hang().ranks) == ("peer_not_joined", (1,))


# --- watchdog
# ----------------------------------------------------------------------------------------------------

# torch 2.11.0, two H200, 2026-11-20
TIMEOUT = (
    "[rank{0}]:[E1120 22:51:18.672216724 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=1024, NumelOut=1024, Timeout(ms)=25000) ran for 25002 milliseconds before "
    "timing out."
)
STATE = (
    "[rank{0}]:[E1120 22:50:14.244935149 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump "
    "signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL "
    "work: {1}, last completed NCCL work: {1}.This is most likely caused by incorrect usages of collectives"
)


def test_watchdogs_that_waited_in_different_calls_tell_the_mismatch() -> None:
    story = steady(3)
    said(
        story,
        TIMEOUT.format(0, 22, "ALLREDUCE"),
        TIMEOUT.format(1, 22, "BROADCAST"),
        TIMEOUT.format(2, 22, "ALLREDUCE"),
    )
    quiet(story, dict.fromkeys(range(3), GPU_WAIT), lambda _: [])

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("collective_mismatch", (1,), (0, 2))


def test_rank_whose_watchdog_is_behind_did_not_come() -> None:
    story = steady(3)
    said(story, TIMEOUT.format(0, 22, "ALLREDUCE"), TIMEOUT.format(2, 22, "ALLREDUCE"), STATE.format(1, 21))
    for _ in range(45):  # no stacks at all, as without ptrace and hook
        story.tell(*(tree(rank, story.now) for rank in range(3)))
        story.wait(4.0)

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks, hang.confidence.value) == (
        "peer_not_joined",
        (1,),
        (0, 2),
        "medium",
    )


def test_rank_whose_watchdog_reports_nothing_while_the_others_do_is_named() -> None:
    story = steady(3)
    said(story, TIMEOUT.format(0, 22, "ALLREDUCE"), TIMEOUT.format(2, 22, "ALLREDUCE"))
    for _ in range(45):
        story.tell(*(tree(rank, story.now) for rank in range(3)))
        story.wait(4.0)

    hang = story.hang()
    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("rank_says_nothing", (1,), (0, 2))
    assert hang.confidence.value == "low"


def test_rank_whose_watchdog_had_come_as_far_is_not_said_to_be_silent() -> None:
    story = steady(3)
    said(story, TIMEOUT.format(0, 22, "ALLREDUCE"), TIMEOUT.format(2, 22, "ALLREDUCE"), STATE.format(1, 22))
    for _ in range(45):
        story.tell(*(tree(rank, story.now) for rank in range(3)))
        story.wait(4.0)

    assert story.hang().ranks == () and "reports nothing" not in story.hang().summary


def test_watchdog_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    from tests.facts import found

    story = steady(2)
    said(story, TIMEOUT.format(0, 22, "ALLREDUCE"), STATE.format(1, 21))
    story.wait(1.0)
    for rank in range(2):
        fact = found(rank, 2)
        place = type(fact.placement)(**{**fact.placement.to_json(), "start_ticks": 999})
        story.tell(type(fact)(rank, place))
    quiet(story, dict.fromkeys(range(2), ALL_REDUCE), lambda _: [], 360.0)

    assert story.hang().ranks == ()


def test_timeout_lines_do_not_hang_a_job_that_moves() -> None:
    story = steady(2)
    said(story, TIMEOUT.format(0, 22, "ALLREDUCE"))
    for number in range(60):
        for rank in range(2):
            moved = stack(rank, story.now, (*SLEEP[:2], f"step /app/model.py:{number}"))
            story.tell(tree(rank, story.now, cpu=float(number)), moved)
        story.wait(2.0)

    assert story.findings() == []


# --- NCCL RAS
# ----------------------------------------------------------------------------------------------------


def ras(counts: Sequence[int], *, dead: Sequence[int] = (), at: float = 0.0) -> RasReading:
    living = tuple(
        RasRank(rank, "node-0", pid_of(rank), rank, rank, 0, 0, counts=(("AllReduce", count),))
        for rank, count in enumerate(counts)
        if rank not in dead
    )
    missing = tuple(RasMissing(rank, "node-0", pid_of(rank), considered_dead=True) for rank in dead)
    world = RasCommunicator("0x1", len(counts), living, missing, "RUNNING", ("INCOMPLETE",) if dead else ())
    return RasReading(None, "2.28.9", (world,), 0, at)


def asked_twice(
    story: Story, stacks: dict[int, Sequence[str]], first: RasReading, second: RasReading
) -> None:
    quiet(story, stacks, lambda _: [], 20.0)
    story.tell(first)
    quiet(story, stacks, lambda _: [], 6.0)
    story.tell(second)
    quiet(story, stacks, lambda _: [], LONG)


def test_rank_that_launched_fewer_collectives_is_named_where_all_stacks_wait_for_the_gpu() -> None:
    story = steady(3)
    asked_twice(story, dict.fromkeys(range(3), GPU_WAIT), ras((26, 25, 26)), ras((26, 25, 26)))

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks, hang.confidence.value) == (
        "gpu_side",
        (1,),
        (0, 2),
        "medium",
    )
    assert hang.cause == "waits_for_gpu"


def test_counts_that_move_between_two_questions_are_a_job_that_moves() -> None:
    story = steady(3)
    asked_twice(story, dict.fromkeys(range(3), GPU_WAIT), ras((26, 25, 26)), ras((27, 27, 26)))

    assert story.findings() == []


def test_process_that_ras_gave_up_is_lost() -> None:
    story = steady(3)
    asked_twice(
        story,
        {0: GPU_WAIT, 1: GPU_WAIT, 2: GPU_WAIT},
        ras((26, 26, 26), dead=[2]),
        ras((26, 26, 26), dead=[2]),
    )

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.cause, hang.confidence.value) == (
        "peer_lost",
        (2,),
        "ras_dead",
        "medium",
    )


def test_equal_counts_blame_nobody() -> None:
    story = steady(2)
    asked_twice(story, dict.fromkeys(range(2), GPU_WAIT), ras((26, 26)), ras((26, 26)))

    assert story.hang().ranks == ()


def test_ras_does_not_overrule_what_a_stack_explains() -> None:
    story = steady(2)
    asked_twice(story, {0: GPU_WAIT, 1: SLEEP}, ras((25, 26)), ras((25, 26)))

    assert story.hang().ranks == (1,)


# --- Flight Recorder
# ---------------------------------------------------------------------------------------------

BACKWARD = (*TRAIN, "backward torch/_tensor.py:625", "_engine_run_backward torch/autograd/graph.py:823")
RECV = (
    *TRAIN,
    "wrapper torch/distributed/c10d_logger.py:83",
    "recv torch/distributed/distributed_c10d.py:2799",
)


def recorder(rank: int, seq: int, *, pending: bool, at: float) -> FlightRecorder:
    group = CollectiveGroup("nccl", "0", "default_pg", (0, 1), seq, seq - pending)
    entry = CollectiveEntry(
        "nccl",
        "0",
        "default_pg",
        seq,
        seq,
        False,
        "all_reduce",
        ((8,),),
        ((8,),),
        ("Float",),
        "scheduled" if pending else "completed",
        not pending,
        pending,
        seq,
        0.0,
    )
    return FlightRecorder(rank, at, "2.10", ("nccl",), (group,), (entry,), pid_of(rank))


def with_recorders(story: Story, stacks: dict[int, Sequence[str]]) -> None:
    """Rank 0 waits in call 26, rank 1 has made 25."""
    for _ in range(3):
        story.tell(recorder(0, 26, pending=True, at=story.now), recorder(1, 25, pending=False, at=story.now))
        quiet(story, stacks, lambda _: [], 14.0)


def test_rank_in_the_autograd_engine_that_the_recorder_misses_has_not_joined() -> None:
    story = steady(2)
    with_recorders(story, {0: ALL_REDUCE, 1: BACKWARD})

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("peer_not_joined", "call_does_not_return", (1,))


def test_rank_in_a_receive_that_the_recorder_misses_waits_for_nobody_who_answers() -> None:
    story = steady(2)
    with_recorders(story, {0: ALL_REDUCE, 1: RECV})

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("collective_mismatch", "call_unanswered", (1,))


def test_other_threads_are_no_evidence_of_a_wait_that_they_have_no_part_in() -> None:
    uploader = ThreadStack(
        4711,
        "uploader",
        frames("_bootstrap /usr/lib/python3.11/threading.py:1", "loop /app/up.py:3", "put /app/up.py:9"),
    )
    story = steady()
    for _ in range(60):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, SLEEP, uploader))
        story.wait(2.0)
    found = story.the("held-up")

    assert found.ranks == (1,)
    assert any("wait_for_leader" in one.excerpt for one in found.evidence)
    assert not any("uploader" in one.excerpt for one in found.evidence)
