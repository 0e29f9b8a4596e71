"""All ranks wait to receive, and nobody sends: said after a minute where the kernel shows that none works and that no
byte moves, and silent where it shows anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from diag.model.observations import CollectiveEntry, EnvironmentSeen, FlightRecorder, GpuSample, ThreadStack
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, TRAIN, Story, frames, pid_of, stack, tree

RECEIVES = (*TRAIN, "broadcast_object_list torch/distributed/distributed_c10d.py:4026")
LOCK = Wait("condition", "futex")
HELPER, LOOP = 90_001, 90_002
Change = Callable[[WaitsRead], WaitsRead]


def ends(rank: int) -> tuple[str, str]:
    here, there = "10.0.0.1:4000", "10.0.0.2:5000"
    return (here, there) if rank == 0 else (there, here)


def read_of(rank: int, silent: float) -> WaitsRead:
    local, peer = ends(rank)
    socket = Wait("tcp_receive", fd=9, local=local, peer=peer, silent_seconds=silent, received_bytes=4096)
    threads = (
        ThreadWait(pid_of(rank), "MainThread", "S", "", LOCK, cpu_ratio=0.0, same=True),
        ThreadWait(HELPER, "progress", "S", "", replace(LOCK, timed=True), cpu_ratio=0.0, same=True),
        ThreadWait(
            LOOP, "gloo_tcp_loop", "S", "", Wait("poll", "epoll_wait", watched=(socket,)), cpu_ratio=0.003
        ),
    )
    return WaitsRead(rank, pid_of(rank), 0.5, (ProcessWaits(pid_of(rank), 1, "python train.py", threads),))


def called(
    rank: int, at: float, *, backend: str = "gloo", seq: int = 33, made: float = 1000.0
) -> FlightRecorder:
    entry = CollectiveEntry(
        backend, "0", "default_pg", seq, seq, False, "broadcast", ((2,),), ((2,),), ("Long",), "scheduled",
        False, True, seq, made,
    )  # fmt: skip
    return FlightRecorder(rank, at, "2.10", (backend,), (), (entry,), pid_of(rank))


def waiting(
    seconds: float,
    changes: dict[int, Change] | None = None,
    *,
    recorder: Callable[[int, float], FlightRecorder] | None = called,
    lines: tuple[str, ...] = RECEIVES,
    world: int = 2,
    silent: float | None = None,
    story: Story | None = None,
) -> Story:
    """Two ranks in a broadcast that both take for one that they receive; `silent`: the seconds that each reading shows."""
    story = story or started(world)
    began = story.now
    while story.now < began + seconds:
        for rank in range(2):
            story.tell(tree(rank, story.now), stack(rank, story.now, lines, *helpers()))
            if recorder is not None:
                story.tell(recorder(rank, story.now))
            read = read_of(rank, story.now - began if silent is None else silent)
            story.tell((changes or {}).get(rank, lambda one: one)(read))
        story.wait(2.0)
    return story


def helpers() -> tuple[ThreadStack, ...]:
    return (ThreadStack(HELPER, "progress", frames("run /app/progress.py:9")),)


def thread(number: int, **more: object) -> Change:
    """With this thread otherwise."""

    def change(read: WaitsRead) -> WaitsRead:
        (process,) = read.processes
        threads = [*process.threads]
        threads[number] = replace(threads[number], **more)  # type: ignore[arg-type]
        return replace(read, processes=(replace(process, threads=tuple(threads)),))

    return change


def socket(**more: object) -> Change:
    def change(read: WaitsRead) -> WaitsRead:
        wait = read.processes[0].threads[2].wait
        (watched,) = wait.watched
        return thread(2, wait=replace(wait, watched=(replace(watched, **more),)))(read)  # type: ignore[arg-type]

    return change


def unreadable(read: WaitsRead) -> WaitsRead:
    return replace(read, processes=())


def test_ranks_that_all_receive_are_reported_after_a_minute() -> None:
    assert waiting(58.0).findings() == []

    found = waiting(66.0).hang()

    assert (found.id, found.severity.value, found.klass, found.cause) == (
        "held-up",
        "warning",
        "unknown",
        "nobody_sends",
    )
    assert (found.ranks, found.waiting_ranks) == ((), (0, 1))
    assert "nobody sends" in found.advice and "Xid" not in found.advice


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(socket(silent_seconds=3.0), id="a slow transfer: bytes come now and then"),
        pytest.param(socket(unsent_bytes=65536), id="bytes are on their way"),
        pytest.param(socket(unread_bytes=12), id="bytes have come and are not read yet"),
        pytest.param(socket(peer="10.0.0.9:80"), id="connected to a stranger only"),
        pytest.param(thread(1, wait=Wait("sleep", "clock_nanosleep", timed=True)), id="a thread sleeps"),
        pytest.param(thread(1, wait=Wait("tcp_receive", "recvfrom", 5)), id="a thread waits for a service"),
        pytest.param(thread(1, wait=Wait("running"), state="R", cpu_ratio=0.4), id="a thread works"),
        pytest.param(thread(2, cpu_ratio=0.2), id="a thread of C works"),
        pytest.param(thread(0, wait=Wait("running"), cpu_ratio=1.0, state="R"), id="the main thread spins"),
        pytest.param(unreadable, id="what it waits for may not be read"),
    ],
)
def test_one_rank_that_may_yet_send_keeps_the_five_minutes(change: Change) -> None:
    assert waiting(120.0, {1: change}).findings() == []


def test_what_the_kernel_said_long_ago_does_not_say_that_nobody_sends_now() -> None:
    story = waiting(14.0, silent=40.0)
    for _ in range(50):
        for rank in range(2):
            story.tell(tree(rank, story.now), stack(rank, story.now, RECEIVES, *helpers()))
            story.tell(called(rank, story.now))
        story.wait(2.0)

    assert story.findings() == []


def _another_every_ten_seconds(rank: int, at: float) -> FlightRecorder:
    count = int(at) // 10
    return called(rank, at, seq=count, made=10.0 * count)


@pytest.mark.parametrize(
    "recorder",
    [
        pytest.param(None, id="no recorder"),
        pytest.param(lambda rank, at: called(rank, at, backend="nccl"), id="calls on GPUs"),
        pytest.param(_another_every_ten_seconds, id="calls are made"),
    ],
)
def test_ranks_of_which_the_recorder_does_not_show_one_call_in_gloo_keep_them(
    recorder: Callable[[int, float], FlightRecorder] | None,
) -> None:
    assert waiting(120.0, recorder=recorder).findings() == []


def test_rank_that_may_use_a_gpu_may_wait_for_a_kernel_that_moves_nothing_here() -> None:
    gpu = GpuSample(
        None, 0, "GPU-0", "0000:01:00.0", "NVIDIA H100", 1.0, 1 << 30, 80 << 30, 300.0, 700.0, None, None
    )
    story = waiting(2.0)
    story.tell(replace(gpu, pids=(pid_of(1),)))

    on_gpu = waiting(120.0, story=story)

    assert "nobody_sends" not in [finding.cause for finding in on_gpu.findings()]


@pytest.mark.parametrize(("visible", "found"), [({"CUDA_VISIBLE_DEVICES": ""}, True), ({}, False)])
def test_rank_that_sees_no_device_uses_none_of_the_machine(visible: dict[str, str], found: bool) -> None:
    """A machine with GPUs, none of whose processes is of the job."""
    story = waiting(2.0)
    for rank in range(2):
        story.tell(EnvironmentSeen(rank, pid_of(rank), tuple(visible.items())))
    story.tell(
        GpuSample(
            None, 0, "GPU-0", "0000:01:00.0", "NVIDIA H100", 1.0, 1 << 30, 80 << 30, 70.0, 700.0, None, None
        )
    )

    assert ("nobody_sends" in [one.cause for one in waiting(120.0, story=story).findings()]) is found


def test_rank_that_is_not_seen_may_yet_send() -> None:
    assert waiting(120.0, world=3).findings() == []


def test_rank_elsewhere_is_blamed_and_not_the_sending() -> None:
    """Rank 0 sleeps for 50 s in code of its own: it is in no wait for peers."""
    story = started()
    for _ in range(25):
        for rank, lines in ((0, (*TRAIN, "settle /app/train.py:31")), (1, ALL_REDUCE)):
            story.tell(tree(rank, story.now), stack(rank, story.now, lines))
            story.tell(read_of(rank, story.now - 1000.0))
        story.wait(2.0)

    assert story.hang().ranks == (0,)
    assert story.hang().cause != "nobody_sends"
