"""Who is to blame where stacks and Flight Recorders speak of different calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder, LayoutReported
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_evidence import BACKWARD
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


def hang_of(
    stacks: Mapping[int, Sequence[str]],
    calls: Mapping[int, tuple[str, int, bool]],
    running: Sequence[int] = (),
) -> Story:
    story = steady(3)
    trees = {rank: {"wchan": "" if rank in running else "futex_wait_queue"} for rank in stacks}
    for _ in range(3):
        for rank, (op, seq, pending) in calls.items():
            recorded(story, rank, op, seq, pending=pending)
        story.still(14.0, stacks, trees=trees)
    return story


def test_rank_in_a_call_that_no_table_names_has_called_another_one() -> None:
    all_reduce = ("all_reduce", 270, True)
    stacks = {0: ALL_REDUCE, 1: ALL_REDUCE, 2: BUFFERS}
    hang = hang_of(stacks, {0: all_reduce, 1: all_reduce, 2: ("broadcast", 270, True)}).hang()

    assert (hang.klass, hang.cause, hang.ranks) == ("collective_mismatch", "calls_differ", (2,))
    assert "rank 2 calls broadcast [32]" in hang.summary


def test_calls_that_differ_are_not_the_cause_while_one_of_the_ranks_is_elsewhere() -> None:
    all_reduce = ("all_reduce", 270, True)
    stacks = {0: ALL_REDUCE, 1: SLEEP, 2: BUFFERS}
    calls = {0: all_reduce, 1: all_reduce, 2: ("broadcast", 270, True)}

    assert hang_of(stacks, calls, running=(1,)).hang().klass == "peer_not_joined"


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


def test_rank_that_is_behind_is_not_blamed_for_another_ones_recorder_that_nobody_has_read() -> None:
    """gloo's names no members: the third may be who is missing."""
    story = steady(3)
    for _ in range(5):
        for rank, pending in ((0, True), (1, False)):
            state = "scheduled" if pending else "completed"
            call = CollectiveEntry(
                "gloo", "5", "", 25 + pending, 25 + pending, False, "all_reduce", ((8,),), ((8,),), ("Float",), state,
                not pending, pending, 25 + pending, 0.0,
            )  # fmt: skip
            story.tell(FlightRecorder(rank, story.now, "2.10", ("gloo",), (), (call,), pid_of(rank)))
        story.still(20.0, dict.fromkeys(range(3), BACKWARD))

    assert story.hang().ranks == ()


def test_readings_of_the_recorder_mean_nothing_two_minutes_later() -> None:
    stacks = {0: ALL_REDUCE, 1: BACKWARD, 2: ALL_REDUCE}
    call = ("all_reduce", 270, True)
    story = hang_of(stacks, {0: call, 1: ("all_reduce", 269, False), 2: call})
    fresh = story.hang().ranks
    story.still(120.0, stacks)

    assert fresh == (1,)
    assert story.hang().ranks == ()


def test_pipeline_of_two_stages_shows_who_is_waited_for_where_the_recorder_has_no_receive() -> None:
    story = steady(4)
    story.tell(LayoutReported(0, stages=2, text="pipeline_model_parallel_size 2"))
    receive = (*TRAIN, "recv_forward megatron/core/pipeline_parallel/p2p_communication.py:100")
    for _ in range(4):
        for rank in range(4):
            recorded(story, rank, "all_reduce", 25, pending=False)
        story.still(20.0, {0: BACKWARD, 1: BACKWARD, 2: receive, 3: BACKWARD})

    assert story.hang().ranks == (0,)
