"""Who is to blame where stacks and Flight Recorders speak of different calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, pid_of

# DDP's forward on gloo, torch 2.13: a call that frames.txt does not name
BUFFERS = (*TRAIN, "_distributed_broadcast_coalesced torch/nn/parallel/distributed.py:2363")
SEND = (*TRAIN, "send torch/distributed/distributed_c10d.py:2753")
_SIZES = {"all_reduce": (849,), "broadcast": (32,)}


def recorded(story: Story, rank: int, op: str, seq: int, *, pending: bool = True) -> None:
    group = CollectiveGroup("gloo", "0", "default_pg", (0, 1, 2), seq, seq - pending)
    size = (_SIZES[op],)
    state = "scheduled" if pending else "completed"
    call = CollectiveEntry(
        "gloo", "0", "default_pg", seq, seq, False, op, size, size, ("Float",), state, not pending, pending, seq, 0.0
    )  # fmt: skip
    story.tell(FlightRecorder(rank, story.now, "2.10", ("gloo",), (group,), (call,), pid_of(rank)))


def hang_of(stacks: Mapping[int, Sequence[str]], calls: Mapping[int, tuple[str, int, bool]]) -> Story:
    story = steady(3)
    for _ in range(3):
        for rank, (op, seq, pending) in calls.items():
            recorded(story, rank, op, seq, pending=pending)
        story.still(14.0, stacks, trees={rank: {"wchan": "futex_wait_queue"} for rank in stacks})
    return story


def test_rank_in_a_call_that_no_table_names_has_called_another_one() -> None:
    all_reduce = ("all_reduce", 270, True)
    stacks = {0: ALL_REDUCE, 1: ALL_REDUCE, 2: BUFFERS}
    hang = hang_of(stacks, {0: all_reduce, 1: all_reduce, 2: ("broadcast", 270, True)}).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("collective_mismatch", "calls_differ", (2,))
    assert "rank 2 calls broadcast [32]" in hang.summary


def test_rank_in_its_own_code_whose_calls_are_over_has_called_nothing_else() -> None:
    all_reduce = ("all_reduce", 270, True)
    stacks = {0: ALL_REDUCE, 1: ALL_REDUCE, 2: SLEEP}
    hang = hang_of(stacks, {0: all_reduce, 1: all_reduce, 2: ("broadcast", 269, False)}).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("peer_not_joined", "not_in_collective", (2,))


def test_rank_that_went_on_to_a_collective_while_most_others_send_is_the_odd_one() -> None:
    before = ("all_reduce", 25, False)
    stacks = {0: SEND, 1: SEND, 2: ALL_REDUCE}
    hang = hang_of(stacks, {0: before, 1: before, 2: ("all_reduce", 26, True)}).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("collective_mismatch", "calls_differ", (2,))
    assert hang.waiting_ranks == (0, 1)
    assert "than ranks 0-1 (rank 2 in all_reduce 26 of default_pg)" in hang.summary


def test_rank_that_sends_while_most_others_have_gone_on_is_not_answered() -> None:
    after = ("all_reduce", 26, True)
    stacks = {0: ALL_REDUCE, 1: ALL_REDUCE, 2: SEND}
    hang = hang_of(stacks, {0: after, 1: after, 2: ("all_reduce", 25, False)}).hang()

    assert (hang.cause, hang.ranks) == ("call_unanswered", (2,))
