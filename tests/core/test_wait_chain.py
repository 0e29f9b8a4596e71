"""Chains of waits over several ranks, and hosts."""

from __future__ import annotations

from diag.detectors.hang.wait_text import format_chain
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.state.wait_chain import OfJob, follow

PID = 7  # in a container, that of each rank


def read(rank: int, wait: Wait, pid: int = PID) -> WaitsRead:
    thread = ThreadWait(pid, "python", "S", "", wait, same=True)
    return WaitsRead(rank, pid, 0.5, (ProcessWaits(pid, 1, "python train.py", (thread,)),))


def receive(local: str, peer: str, *others: Party) -> Wait:
    return Wait("tcp_receive", "recvfrom", 5, local=local, peer=peer, others=others)


def test_rank_of_another_host_is_found_by_the_other_end_of_its_connection() -> None:
    near = read(1, receive("10.0.0.1:40000", "10.0.0.2:50000"))
    far = read(9, Wait("poll", "poll", watched=(receive("10.0.0.2:50000", "10.0.0.1:40000"),)))
    other = read(8, receive("10.0.0.2:50001", "10.0.0.1:40000"))

    found = follow(near, PID, job=OfJob(far=(other, far)))

    assert found is not None
    assert ([step.process for step in found.steps], found.end) == (
        [near.processes[0], far.processes[0]],
        "several",
    )
    assert "rank 9 (pid 7)" in format_chain(found)


def test_two_ranks_that_read_from_each_other_are_a_cycle() -> None:
    near = read(1, receive("10.0.0.1:40000", "10.0.0.1:50000", Party(8)))
    other = read(0, receive("10.0.0.1:50000", "10.0.0.1:40000", Party(PID)), pid=8)

    found = follow(near, PID, job=OfJob(ranks={8: 0}, near=(other,)))

    assert found is not None and (found.end, found.at, found.stays_in_job) == ("cycle", 0, True)


def test_rank_whose_waits_were_not_read_ends_the_chain() -> None:
    near = read(1, receive("10.0.0.1:40000", "10.0.0.1:50000", Party(8)))

    found = follow(near, PID, job=OfJob(ranks={8: 0}))
    alone = follow(near, PID)

    assert found is not None and (found.end, found.stays_in_job) == ("rank", True)
    assert alone is not None and (alone.end, alone.stays_in_job) == ("outside", False)


def test_store_ends_the_chain_whoever_serves_it() -> None:
    near = read(1, receive("10.0.0.1:40000", "10.0.0.1:29500", Party(8, 0, "torchrun")))

    found = follow(near, PID, job=OfJob(store=("node-0", "29500")))

    assert found is not None and (len(found.steps), found.end) == (1, "store")
    assert format_chain(found).endswith("the job's own store (MASTER_ADDR:MASTER_PORT)")
