"""Ranks that were started with values that do not fit together: what differs is named, and nothing where it only looks
so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from diag.model import Confidence, Finding, Severity
from diag.model.observations import EnvironmentSeen, Iteration, RankShared, RunEnded, StoreWaited
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.facts import ALL_REDUCE, SLEEP, Story, pid_of

START = ("<module> /app/train.py:30", "main /app/train.py:12")
INIT = (*START, "init_process_group torch/distributed/distributed_c10d.py:1892")
# torch 2.13, CPU: where it waits for its store, or for all to connect to it
CONNECT = (
    *INIT,
    "_env_rendezvous_handler torch/distributed/rendezvous.py:280",
    "_create_c10d_store torch/distributed/rendezvous.py:199",
)
# and where gloo waits for its peers
GLOO = (*INIT, "_new_process_group_helper torch/distributed/distributed_c10d.py:2169")
BARRIER = (*START, "barrier torch/distributed/distributed_c10d.py:5356")

Setting = tuple[int, str, str]  # WORLD_SIZE, MASTER_ADDR, MASTER_PORT


def started(settings: Mapping[int, Setting], world: int | None = None) -> Story:
    story = Story(world=world or len(settings))
    for rank, (count, host, port) in settings.items():
        values = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": host, "MASTER_PORT": port}
        story.tell(EnvironmentSeen(rank, pid_of(rank), tuple(values.items())))
    return story


def listens(story: Story, rank: int, *ports: str) -> None:
    """As the thread of torch's store waits for connections."""
    watched = tuple(
        Wait("tcp_accept", fd=number, local=f"[::]:{port}", socket_state="LISTEN")
        for number, port in enumerate(ports)
    )
    poll = Wait("poll", "epoll_wait", 3, watched=watched)
    pid = pid_of(rank)
    threads = (
        ThreadWait(pid, "python3", "S", "hrtimer_nanosleep", Wait("sleep", seconds=0.01)),
        ThreadWait(pid + 5000, "pt_tcpstore_uv", "S", "do_epoll_wait", poll),
    )
    story.tell(WaitsRead(rank, pid, 0.5, (ProcessWaits(pid, 1, "python train.py", threads),)))


def in_vain(story: Story, rank: int, host: str, port: str, *, over: bool = False) -> None:
    story.tell(StoreWaited(rank, pid_of(rank), host, int(port), 0, pending=False, over=over))


def failures(story: Story) -> list[Finding]:
    return [one for one in story.findings() if one.id == "rendezvous-failure"]


def local(*ports: str) -> dict[int, Setting]:
    return {rank: (len(ports), "127.0.0.1", port) for rank, port in enumerate(ports)}


@pytest.mark.parametrize("count", [2, 3, 8])
def test_ranks_that_each_took_a_port_of_their_own_are_named_with_their_values(count: int) -> None:
    ports = [str(40000 + rank) for rank in range(count)]
    story = started(local(*ports))
    listens(story, 0, ports[0])
    for rank in range(1, count):
        in_vain(story, rank, "127.0.0.1", ports[rank])
    story.still(20, dict.fromkeys(range(count), CONNECT))

    (found,) = failures(story)
    assert (found.cause, found.ranks, found.waiting_ranks) == ("port_differs", tuple(range(1, count)), (0,))
    assert (found.severity, found.confidence) == (Severity.CRITICAL, Confidence.HIGH)
    assert "different values of MASTER_PORT: 40000 (rank 0), 40001 (rank 1)" in found.summary
    assert "rank 0 listens on port 40000" in found.summary
    assert "no connection to 127.0.0.1:40001" in found.summary
    assert "Set MASTER_PORT once, before the ranks are started, and export it" in found.advice
    assert found.evidence[0].rank == 1 and "MASTER_PORT=40001" in found.evidence[0].excerpt


def test_one_rank_of_another_port_is_named_while_the_rest_waits_for_it_in_several_calls() -> None:
    story = started(local("29500", "29500", "29501", "29500"))
    listens(story, 0, "29500")
    in_vain(story, 2, "127.0.0.1", "29501")
    story.still(40, {0: CONNECT, 1: GLOO, 2: CONNECT, 3: GLOO})

    (found,) = failures(story)
    assert found.ranks == (2,)
    assert "29500 (ranks 0-1, 3), 29501 (rank 2)" in found.summary
    assert story.hang().cause == "ranks_disagree" and story.hang().ranks == (2,)


def test_the_finding_of_who_waits_says_the_same() -> None:
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    in_vain(story, 1, "127.0.0.1", "29501")
    story.still(45, {0: CONNECT, 1: CONNECT})

    (failure,) = failures(story)
    waits = story.hang()
    said = "the ranks were started with different values of MASTER_PORT: 29500 (rank 0), 29501 (rank 1)"
    assert said in failure.summary and said in waits.summary
    assert waits.ranks == failure.ranks == (1,)
    assert [one.id for one in story.findings()].index("rendezvous-failure") == 0


def test_first_rank_whose_port_another_program_has_is_not_waited_for_in_vain() -> None:
    """Rank 1 has a connection: to the store of somebody else."""
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    story.still(20, {0: CONNECT, 1: GLOO})

    assert [one.cause for one in failures(story)] == ["port_differs"]


def test_rank_that_looks_for_another_machine_than_the_one_that_listens_is_named() -> None:
    story = started({0: (2, "127.0.0.1", "29500"), 1: (2, "10.9.9.9", "29500")})
    listens(story, 0, "29500")
    in_vain(story, 1, "10.9.9.9", "29500")
    story.still(20, {0: CONNECT, 1: CONNECT})

    (found,) = failures(story)
    assert (found.cause, found.ranks) == ("address_differs", (1,))
    assert "MASTER_ADDR: 127.0.0.1 (rank 0), 10.9.9.9 (rank 1)" in found.summary


@pytest.mark.parametrize(("counts", "stacks"), [((2, 3), (BARRIER, GLOO)), ((3, 2), (CONNECT, GLOO))])
def test_ranks_that_were_told_of_different_counts_are_named(
    counts: tuple[int, int], stacks: tuple[Sequence[str], Sequence[str]]
) -> None:
    story = started({rank: (count, "127.0.0.1", "29500") for rank, count in enumerate(counts)})
    story.still(20, dict(enumerate(stacks)))
    (early,) = failures(story)
    story.still(90, dict(enumerate(stacks)))

    (found,) = failures(story)
    assert (found.cause, found.ranks) == ("world_size_differs", (1,))
    assert f"WORLD_SIZE: {counts[0]} (rank 0), {counts[1]} (rank 1)" in found.summary
    assert (early.severity, found.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert story.hang().ranks == (1,)


def test_two_processes_of_one_number_are_named_with_the_number_that_nobody_has() -> None:
    story = started(local("29500", "29500"), world=2)
    for rank in (0, 1):
        values = {
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
        story.tell(EnvironmentSeen(rank, pid_of(rank), tuple(values.items())))
    story.tell(RankShared(1, (pid_of(1), 4711)))
    story.still(20, {0: GLOO, 1: GLOO})

    (found,) = failures(story)
    assert (found.cause, found.ranks, found.severity) == ("duplicate_rank", (1,), Severity.CRITICAL)
    assert (
        "2 processes were started as rank 1 (pids 1001, 4711), and none as rank 2 of WORLD_SIZE 3"
        in found.summary
    )


def test_rank_that_is_not_below_its_world_size_is_named_and_its_death_refers_to_it() -> None:
    story = started({0: (2, "127.0.0.1", "29500"), 1: (2, "127.0.0.1", "29500")}, world=3)
    values = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    story.tell(EnvironmentSeen(2, pid_of(2), tuple(values.items())))
    story.still(4, {0: GLOO, 1: GLOO})
    story.exit(2, code=1)
    story.still(16, {0: GLOO, 1: GLOO})

    (found,) = failures(story)
    assert (found.cause, found.ranks, found.final) == ("rank_out_of_range", (2,), True)
    assert "rank 2 was started with WORLD_SIZE 2, whose ranks are 0 to 1" in found.summary
    assert "rendezvous-failure" in story.the("rank-died").advice


def test_ranks_that_die_of_it_leave_the_finding() -> None:
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    in_vain(story, 1, "127.0.0.1", "29501")
    story.still(20, {0: CONNECT, 1: CONNECT})
    story.exit(1, code=1)
    story.wait(1)
    story.exit(0, signal=15)
    story.tell(RunEnded(None, 1))
    story.wait(30)

    (found,) = failures(story)
    assert found.final and found.cause == "port_differs"
    assert "See finding rendezvous-failure" in story.the("rank-died").advice


# --- and nothing


def test_nothing_is_said_before_they_have_waited_for_a_while() -> None:
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    in_vain(story, 1, "127.0.0.1", "29501")
    story.still(12, {0: CONNECT, 1: CONNECT})

    assert failures(story) == []


@pytest.mark.parametrize("other", ["localhost", "127.0.1.1", "::1", "node-0", "10.0.0.5"])
def test_address_that_is_written_otherwise_and_is_reached_is_no_difference(other: str) -> None:
    story = started({0: (3, "127.0.0.1", "29500"), 1: (3, other, "29500")}, world=3)
    listens(story, 0, "29500")
    story.still(60, {0: CONNECT, 1: GLOO, 2: SLEEP})

    assert failures(story) == [] and story.hang().cause != "ranks_disagree"


@pytest.mark.parametrize("other", ["node-0", "10.0.0.5"])
def test_address_is_not_compared_where_nobody_listens_yet(other: str) -> None:
    story = started({0: (3, "127.0.0.1", "29500"), 1: (3, "127.0.0.1", "29500"), 2: (3, other, "29500")})
    story.still(1, {0: SLEEP, 1: CONNECT, 2: CONNECT})
    for rank, host in ((1, "127.0.0.1"), (2, other)):
        in_vain(story, rank, host, "29500")
    story.still(20, {0: SLEEP, 1: CONNECT, 2: CONNECT})

    assert failures(story) == []


def test_restart_of_all_ranks_at_another_port_is_no_difference() -> None:
    """The old rank 1 has not gone yet, or its environment is known a moment earlier."""
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    in_vain(story, 1, "127.0.0.1", "29501")
    story.still(8, {0: CONNECT, 1: CONNECT})
    values = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    story.tell(EnvironmentSeen(0, pid_of(0), tuple(values.items())))
    listens(story, 0, "29501")
    in_vain(story, 1, "127.0.0.1", "29501", over=True)
    story.still(30, {0: CONNECT, 1: CONNECT})

    assert failures(story) == []


def test_ranks_of_two_jobs_on_one_node_are_no_duplicates() -> None:
    story = started(local("29500", "29500"))
    for rank in (0, 1):
        story.tell(RankShared(rank, (pid_of(rank), 4700 + rank)))
    story.still(60, {0: GLOO, 1: GLOO})

    assert failures(story) == []


def test_program_that_listens_elsewhere_does_not_go_by_these_variables() -> None:
    story = started(local("29500", "29501"))
    listens(story, 0, "5000")
    story.still(60, {0: CONNECT, 1: CONNECT})

    assert failures(story) == []


def test_values_of_which_nothing_shows_that_they_are_used_are_not_compared() -> None:
    """init_method="file://...": the variables are left over from elsewhere."""
    story = started(local("29500", "29501"))
    story.still(60, {0: GLOO, 1: GLOO})

    assert failures(story) == []


def test_ranks_that_a_group_numbers_otherwise_than_their_environment_are_not_compared() -> None:
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    story.tell(EnvironmentSeen(1, pid_of(1), tuple(values.items())))
    story.still(60, {0: CONNECT, 1: CONNECT})

    assert failures(story) == []


def test_job_that_makes_steps_or_waits_in_its_collectives_is_not_compared() -> None:
    story = started(local("29500", "29501"))
    listens(story, 0, "29500")
    story.still(60, {0: ALL_REDUCE, 1: ALL_REDUCE})
    waits = failures(story)
    story.tell(Iteration(None, 3, 100, "3/100"))
    story.still(30, {0: CONNECT, 1: CONNECT})

    assert waits == failures(story) == []
    assert all(one.cause != "ranks_disagree" for one in story.findings())
