"""Ranks that wait in the first calls of groups, where NCCL makes the communicators and no recorder has the call yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import ChangeKind, Finding
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.netfacts import environment, nccl
from tests.detectors.test_hang import started, steady
from tests.detectors.test_hang_evidence import recorder
from tests.facts import ALL_REDUCE, TRAIN, Story, pid_of, stack, tree

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu-loops" / "opposite-groups"
STRUCK = 1795446668.407
STORE = "10.0.0.1:29500"
FETCHES = Wait("tcp_receive", "poll", 45, peer=STORE)
COMPUTES = Wait("running")
GPU_SYNC = (*TRAIN, "synchronize torch/cuda/__init__.py:1083")


def communicator(
    rank: int, size: int = 2, *, id: int = 0xB, made: bool = False, begun: bool = True
) -> list[str]:
    head = (
        f"ncclCommInitRankConfig comm 0x{id:x}00{rank} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 60 "
        f"commId 0x{id:x} - Init"
    )
    return [f"{head} START"] * begun + [f"{head} COMPLETE"] * made


def with_log(story: Story, *ranks: int) -> Story:
    """NCCL's log is read, and the communicator of all is made; the job's store is known."""
    for rank in range(story.world):
        story.tell(environment(rank, MASTER_ADDR="10.0.0.1", MASTER_PORT="29500"))
    for rank in ranks:
        story.tell(*nccl(pid_of(rank), *communicator(rank, story.world, id=0xA, made=True), host="node-0"))
    return story


def begin(story: Story, *ranks: int, size: int, id: int = 0xB) -> None:
    for rank in ranks:
        story.tell(*nccl(pid_of(rank), *communicator(rank, size, id=id), host="node-0"))


def waits(rank: int, wait: Wait) -> WaitsRead:
    pid = pid_of(rank)
    thread = ThreadWait(pid, "MainThread", "S", "", wait, cpu_ratio=0.0, same=True)
    return WaitsRead(rank, pid, 0.5, (ProcessWaits(pid, 1, "python train.py", (thread,)),))


def stand(
    story: Story,
    seconds: float,
    waiting: Mapping[int, Wait],
    *,
    stacks: Mapping[int, tuple[str, ...]] | None = None,
    pending: Mapping[int, bool] | None = None,
) -> None:
    """All ranks stay where they are; of those in `waiting` the kernel was asked."""
    for number in range(int(seconds / 2)):
        story.wait(2.0)
        for rank, is_pending in (pending or {}).items() if number % 5 == 1 else ():
            story.tell(recorder(rank, 25 + is_pending, pending=is_pending, at=story.now))
        for rank in range(len(story.engine.job.ranks)):
            story.tell(tree(rank, story.now), stack(rank, story.now, (stacks or {}).get(rank, ALL_REDUCE)))
            if rank in waiting:
                story.tell(waits(rank, waiting[rank]))


def told_of(finding: Finding) -> tuple[str, str, str, tuple[int, ...], tuple[int, ...]]:
    return finding.id, finding.klass or "", finding.cause, finding.ranks, finding.waiting_ranks


# -- said ---------------------------------------------------------------------------------------------------


def test_two_groups_taken_in_opposite_order_are_found_though_no_recorder_has_the_calls() -> None:
    """Two ranks on an H100, torch 2.11, NCCL 2.28.9: each is in its first call of another group of both."""
    changes = replay_records(JournalReader(segments(CAPTURE)))[1]
    ((found, after),) = [
        (change.finding, change.at - STRUCK) for change in changes if change.kind is ChangeKind.OPENED
    ]

    assert told_of(found) == ("hang", "comm_init", "communicators_wait_for_each_other", (0, 1), ())
    assert (found.severity.value, found.confidence.value) == ("critical", "high")
    assert [ground.kind for ground in found.grounds] == ["cycle"]
    assert "ranks 0-1 have held each other up in making communicators" in found.summary
    assert "rank 0 has begun a communicator of 2 ranks in all_reduce (from _opposite_groups" in found.summary
    assert "rank 1 waits in all_reduce (from _opposite_groups" in found.summary
    assert "not checked" not in found.summary
    (line,) = [item.excerpt for item in found.evidence if item.kind == "nccl"]
    assert line.startswith("ncclCommInitRankConfig") and line.endswith("- Init START")
    assert 15 <= after <= 20


def test_rank_that_alone_waits_for_another_communicator_is_the_one_to_blame() -> None:
    story = with_log(steady(4), *range(4))
    begin(story, 0, 1, 2, size=4)

    stand(story, 24.0, {3: FETCHES})
    hang = story.hang()

    assert told_of(hang) == ("hang", "comm_init", "communicators_wait_for_each_other", (3,), (0, 1, 2))
    assert "rank 3 has held up the making of a communicator for" in hang.summary
    assert "ranks 0-2 have begun a communicator of 4 ranks, rank 3 waits in all_reduce" in hang.summary


def test_groups_of_two_in_a_ring_wait_for_each_other_though_their_members_are_not_known() -> None:
    """Rank 0 has begun one of two; who else is in it, nobody tells. Whoever it is waits too."""
    story = with_log(steady(4), *range(4))
    begin(story, 0, size=2)

    stand(story, 24.0, {1: FETCHES, 2: FETCHES, 3: FETCHES})

    assert told_of(story.hang())[2:] == ("communicators_wait_for_each_other", (0, 1, 2, 3), ())


def test_rank_that_alone_goes_on_with_a_call_of_all_is_the_one_to_blame() -> None:
    """Ranks 1-3 are in the first call of a group; rank 0, which would make its id, is in the next one of all."""
    story = with_log(steady(4), *range(4))

    stand(story, 60.0, dict.fromkeys((1, 2, 3), FETCHES), pending={0: True, 1: False, 2: False, 3: False})

    assert told_of(story.hang())[2:] == ("communicators_wait_for_each_other", (0,), (1, 2, 3))


def test_call_of_a_made_communicator_and_first_call_of_another_wait_for_each_other() -> None:
    """Rank 0 is in a call of all that its recorder has; rank 1 fetches the id of a communicator: without any log."""
    story = with_log(steady(), 0, 1)

    stand(story, 60.0, {1: FETCHES}, pending={0: True, 1: False})
    hang = story.hang()

    assert hang.cause == "communicators_wait_for_each_other"
    assert (hang.ranks, hang.confidence.value) == ((0, 1), "medium")


def test_without_nccls_log_it_is_said_what_is_known_and_what_was_not_checked() -> None:
    story = with_log(steady(), 1)

    stand(story, 50.0, {0: COMPUTES, 1: FETCHES})
    early = story.findings()
    stand(story, 20.0, {0: COMPUTES, 1: FETCHES})
    (found,) = story.findings()

    assert early == []
    assert told_of(found) == ("held-up", "unknown", "communicator_not_made", (), (0, 1))
    assert (
        "rank 1 waits in all_reduce (from train, /app/train.py:200) for another rank to begin"
        in found.summary
    )
    assert "not checked: NCCL's log of rank 0" in found.summary


def test_rank_that_waits_for_its_own_gpu_has_not_come_to_make_the_communicator() -> None:
    story = with_log(steady(), 0, 1)
    begin(story, 0, size=2)

    stand(story, 40.0, {0: COMPUTES}, stacks={1: GPU_SYNC}, pending={0: False, 1: False})
    found = story.the("held-up")

    assert (found.klass, found.cause) == ("gpu_side", "waits_for_gpu")
    assert (found.ranks, found.waiting_ranks) == ((1,), (0,))
    assert any(item.kind == "nccl" for item in found.evidence)


# -- not said -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [steady, started])
def test_communicator_that_all_have_begun_may_take_its_time(made: type[Story]) -> None:
    """The first one of a large job takes minutes; nobody is late in it."""
    story = with_log(made(), 0, 1)
    begin(story, 0, 1, size=2)

    stand(story, 56.0, {0: COMPUTES, 1: COMPUTES})

    assert story.findings() == []


def test_rank_that_loads_kernels_before_it_begins_is_not_blamed() -> None:
    """It has its id: it is in the call, and not at the store."""
    story = with_log(started(), 0, 1)
    begin(story, 0, size=2)

    stand(story, 280.0, {0: COMPUTES, 1: Wait("page_fault", path="/opt/libnccl.so.2")})
    early = story.findings()
    stand(story, 40.0, {0: COMPUTES, 1: Wait("page_fault", path="/opt/libnccl.so.2")})

    assert early == []
    assert told_of(story.findings()[0])[1:4] == ("unknown", "communicator_not_made", ())


def test_rank_that_still_imports_while_another_begins_is_not_hung() -> None:
    story = with_log(started(), 0, 1)
    begin(story, 0, size=2)

    for second in range(50):
        story.wait(2.0)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE), waits(0, COMPUTES))
        story.tell(tree(1, story.now, cpu=second * 1.5, chars=second << 20))
        story.tell(stack(1, story.now, (*TRAIN, f"<module> /app/models/layer_{second}.py:3")))

    assert story.findings() == []


def test_ranks_of_a_node_that_is_not_seen_may_come() -> None:
    story = Story(world=4, nodes=2)
    with_log(story, 0, 1)
    begin(story, 0, size=4)

    stand(story, 200.0, {0: COMPUTES, 1: FETCHES})

    assert not any(finding.id == "hang" for finding in story.findings())


def test_rank_that_was_at_the_store_before_another_began_may_have_its_id() -> None:
    """It was asked once, and not again: what it did after that is not known."""
    story = with_log(steady(), 0, 1)
    stand(story, 8.0, {1: FETCHES})
    begin(story, 0, size=2)

    stand(story, 40.0, {})

    assert story.findings() == []


@pytest.mark.parametrize(
    "wait",
    [
        Wait("tcp_receive", "recvfrom", 5, peer="10.0.0.9:443"),
        replace(FETCHES, unsent_bytes=40),
        replace(FETCHES, retransmits=3),
    ],
)
def test_other_service_or_store_that_is_out_of_reach_proves_nothing(wait: Wait) -> None:
    story = with_log(steady(), 0, 1)
    begin(story, 0, size=2)

    stand(story, 40.0, {1: wait})

    assert story.findings() == []


def test_communicator_that_was_begun_long_before_this_call_is_not_what_it_waits_for() -> None:
    """One that failed, and was given up without a line in the log."""
    story = with_log(steady(), 0, 1)
    begin(story, 0, size=2)
    story.wait(30.0)

    stand(story, 80.0, {1: COMPUTES})

    assert told_of(story.findings()[0])[1:4] == ("unknown", "all_ranks_wait", ())


def test_communicator_that_is_made_or_given_up_is_not_under_way() -> None:
    story = with_log(steady(), 0)
    begin(story, 0, size=2)
    (process,) = story.engine.job.nccl_processes.by_pid.values()
    under_way = [one.comm_id for one in process.communicators.values() if one.began is not None]

    story.tell(*nccl(pid_of(0), *communicator(0, made=True, begun=False), host="node-0"))

    assert under_way == ["0xb"]
    assert [one.began for one in process.communicators.values()] == [None, None]
