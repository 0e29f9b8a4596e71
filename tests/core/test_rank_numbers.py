"""A process that turns out to be another rank than it was taken for, or none: no number has samples of two."""

from __future__ import annotations

from dataclasses import replace

from diag.model import Placement
from diag.model.observations import PhaseMarked, RankExited, RankFound, RankShared, RankWithdrawn, ThreadStack
from diag.sources.host import run as run_source
from diag.state.job import JobState
from tests.facts import DATA, SLEEP, TICKS, found, frames, stack, tree


def grouped(rank: int, pid: int, world: int = 3, number: int = 1, thread: tuple[int, ...] = ()) -> RankFound:
    place = Placement(rank, rank, world, "node-0", pid, TICKS, launcher="group")
    return RankFound(rank, place, "python train.py", True, number, thread)


def lone(pid: int) -> RankFound:
    return RankFound(0, Placement(0, 0, 1, "node-0", pid, TICKS), "python train.py", False)


def told(*facts: object, at: float = 100.0, job: JobState | None = None) -> JobState:
    job = job or JobState()
    for fact in facts:
        job.observe(at, fact)  # type: ignore[arg-type]
    return job


def read_of(rank: int, pid: int, at: float, lines: tuple[str, ...] = DATA) -> tuple[object, object]:
    """A stack and a reading of /proc of the process `pid` under this number."""
    process = tree(rank, at)
    own = replace(stack(rank, at, lines), pid=pid)
    return own, replace(process, main=replace(process.main, pid=pid))


def test_process_that_becomes_another_rank_takes_its_number_and_leaves_nothing_behind() -> None:
    # given one process, taken for rank 0, with samples of its training
    job = told(lone(500), PhaseMarked(None, "training", ""), *read_of(0, 500, 101.0))
    assert job.residence.counts() != {}

    # when its group says that it is rank 2, and another process is rank 0
    told(grouped(2, 500), grouped(0, 501), at=110.0, job=job)

    # then nothing that was read under number 0 is the other process's
    assert {rank.rank: rank.placement.pid for rank in job.ranks.values()} == {0: 501, 2: 500}
    assert (job.ranks[0].stack, job.ranks[0].tree, job.residence.counts()) == (None, None, {})
    assert (list(job.ranks.past), job.world_size) == ([], 3)
    assert [rank.rank for rank in job.ranks.alive()] == [0, 2]


def test_rank_0_that_was_right_keeps_what_was_read_of_it() -> None:
    job = told(lone(500), *read_of(0, 500, 101.0))

    told(grouped(0, 500, world=2), at=110.0, job=job)

    assert job.ranks[0].stack is not None
    assert (job.ranks[0].distributed, job.ranks[0].group, job.world_size) == (True, 1, 2)


def test_launcher_that_was_taken_for_rank_0_is_forgotten_and_nothing_was_restarted() -> None:
    job = told(lone(500), *read_of(0, 500, 101.0), PhaseMarked(None, "training", ""))

    told(RankWithdrawn(0, 500), grouped(1, 502), grouped(2, 503), at=110.0, job=job)
    assert set(job.ranks) == {1, 2}
    told(grouped(0, 501), at=111.0, job=job)

    assert (set(job.ranks), list(job.ranks.past), job.phase) == ({0, 1, 2}, [], "training")


def test_number_that_two_processes_share_stays_shared_when_one_of_them_goes_on_alone() -> None:
    job = told(grouped(0, 501), RankShared(0, (501, 502)), RankExited(0, 501, 1, None, "pidfd"))

    told(grouped(0, 502), at=110.0, job=job)
    beside = job.ranks[0].shared
    told(RankExited(0, 502, 1, None, "pidfd"), grouped(0, 503), at=120.0, job=job)

    assert (beside, job.ranks[0].shared) == ((501, 502), ())


def test_withdrawal_of_an_earlier_process_takes_nothing_from_the_rank() -> None:
    job = told(grouped(0, 501), RankWithdrawn(0, 500))

    assert job.ranks[0].placement.pid == 501


def test_two_ranks_that_change_their_numbers_are_no_restart() -> None:
    job = told(found(0), found(1))
    one, two = job.ranks[0].placement.pid, job.ranks[1].placement.pid

    told(grouped(1, one, world=2), grouped(0, two, world=2), at=110.0, job=job)

    assert {rank.rank: rank.placement.pid for rank in job.ranks.values()} == {1: one, 0: two}
    assert list(job.ranks.past) == []


def test_late_stack_of_the_numbers_earlier_process_is_not_the_ranks_nor_a_childs() -> None:
    job = told(lone(500), grouped(0, 501))

    told(*read_of(0, 500, 111.0), at=111.0, job=job)

    assert (job.ranks[0].stack, job.ranks[0].child_stacks) == (None, {})


def test_group_of_another_size_is_another_attempt_of_the_same_job() -> None:
    # given three ranks of which one has died
    job = told(*(grouped(rank, 500 + rank) for rank in range(3)), PhaseMarked(None, "steady", ""))
    told(RankExited(2, 502, None, 9, "pidfd"), at=105.0, job=job)

    # when the others go on as two
    told(*(grouped(rank, 500 + rank, world=2, number=2) for rank in range(2)), at=110.0, job=job)

    # then it is a job of two, and who died is of the attempt before
    assert (set(job.ranks), job.world_size) == ({0, 1}, 2)
    assert [(rank.rank, rank.failed) for rank in job.ranks.past] == [(2, True)]
    assert job.phase == "rendezvous"


def test_spawn_again_with_fewer_is_another_attempt() -> None:
    job = told(*(grouped(rank, 500 + rank) for rank in range(3)))
    told(*(RankExited(rank, 500 + rank, 0, None, "pidfd") for rank in range(3)), at=105.0, job=job)

    told(*(grouped(rank, 600 + rank, world=2) for rank in range(2)), at=110.0, job=job)

    assert (set(job.ranks), job.world_size, len(job.ranks.alive())) == ({0, 1}, 2, 2)
    assert sorted(rank.rank for rank in job.ranks.past) == [0, 1, 2]


def test_thread_that_joined_the_group_is_read_and_not_the_main_one() -> None:
    trainer = ThreadStack(777, "trainer", frames(*SLEEP))
    sample = stack(0, 101.0, ("<module> /app/train.py:9", "join python3.11/threading.py:1119"), trainer)

    job = told(grouped(0, sample.pid, world=1, thread=(777, 12345)), sample)

    assert job.ranks[0].reading is not None
    assert job.ranks[0].reading.where is not None
    assert job.ranks[0].reading.where.function == "wait_for_leader"
    assert job.ranks[0].stack is not None and job.ranks[0].judged is trainer


def test_main_thread_is_read_where_the_thread_that_joined_has_ended() -> None:
    sample = stack(0, 101.0, SLEEP)

    job = told(grouped(0, sample.pid, world=1, thread=(777, 12345)), sample)

    assert job.ranks[0].stack is not None
    assert job.ranks[0].judged is sample.threads[0]


def test_records_of_a_group_and_of_a_withdrawal_are_read_as_they_were_written() -> None:
    fact = grouped(2, 500, number=3, thread=(777, 12345))

    record = run_source.rank_found(fact.placement, fact.command, {}, group=fact.group, thread=fact.thread)

    assert next(run_source.parse(record)) == fact
    assert list(run_source.parse(run_source.rank_withdrawn(2, 500, "node-0"))) == [RankWithdrawn(2, 500)]
    assert list(run_source.parse(run_source.rank_shared(2, (500, 501), "node-0"))) == [
        RankShared(2, (500, 501))
    ]


def test_record_of_a_rank_that_its_environment_names_is_as_it_was() -> None:
    payload = run_source.rank_found(found(0).placement, "python train.py", {}).payload

    assert set(payload) == {"event", "placement", "command", "env", "distributed"}
