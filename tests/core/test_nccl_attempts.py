"""What NCCL said in processes of earlier attempts: some of it is kept, and not for ever."""

from __future__ import annotations

from diag.model import Placement
from diag.model.observations import NcclCommunicator, NcclLine, RankFound
from diag.state.ncclprocesses import NcclProcesses


def begin(processes: NcclProcesses, attempt: int, host: str = "node-0.cluster.local") -> None:
    for rank in range(2):
        pid = 1000 + 10 * attempt + rank
        processes.observe(attempt, RankFound(rank, Placement(rank, rank, 2, host, pid, 5), "python train.py"))
        line = NcclLine(None, "node-0", pid, pid, rank, "INFO", "ncclCommInitRank")
        processes.observe(
            attempt, NcclCommunicator(None, line, "complete", "0x1", rank, 2, comm_id=f"0x{attempt}")
        )


def test_processes_of_attempts_long_past_are_forgotten() -> None:
    processes = NcclProcesses()
    elsewhere = NcclLine(None, "node-1", 1000, 1000, 0, "INFO", "Using network IB")
    processes.observe(0.0, elsewhere)
    for attempt in range(20):
        begin(processes, attempt)

    told = sorted((host, pid) for host, pid, _ in processes.by_pid)
    last = [("node-0", 1000 + 10 * attempt + rank) for attempt in (17, 18, 19) for rank in (0, 1)]
    assert told == [*last, ("node-1", 1000)]  # another node's of the same pid stays


def test_pid_that_the_kernel_gave_out_again_keeps_what_it_says_now() -> None:
    processes = NcclProcesses()
    for attempt in (0, 1, 2, 0):
        begin(processes, attempt)

    assert {rank: process.pid for rank, process in processes.placed().items()} == {0: 1000, 1: 1001}
