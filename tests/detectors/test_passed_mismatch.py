"""Calls that did not fit together and that NCCL let pass: seen in the recorders while nobody waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from diag.detectors.training.passed_mismatch import PassedMismatchDetector
from diag.engine.replay import replay
from diag.model.observations import CallHistory, CollectiveEntry, CollectiveGroup, FlightRecorder, RankFound
from tests.core.test_waitgraph import call, recorder
from tests.facts import Story, found
from tests.sources.test_call_ring import Raw, history, raw, trace

CAPTURES = Path(__file__).parents[1] / "captures"


def calls(
    rank: int, *kinds: tuple[str, int], members: tuple[int, ...] = (0, 1), desc: str = "undefined"
) -> FlightRecorder:
    """Calls that are over, in this order: an operation and a number of elements each."""
    entries: list[CollectiveEntry] = [
        dataclasses.replace(
            call("1", seq, op),
            backend="nccl",
            input_sizes=((size,),),
            output_sizes=((size,),),
            pending=False,
            desc=desc,
        )
        for seq, (op, size) in enumerate(kinds, 1)
    ]
    made = recorder(rank, entries)
    group = CollectiveGroup("nccl", "1", desc, members, len(kinds), len(kinds))
    return dataclasses.replace(made, groups=(group,), backends=("nccl",))


def told(*recorders: FlightRecorder) -> Story:
    story = Story([PassedMismatchDetector()], world=len(recorders))
    for one in recorders:
        story.tell(one)
    story.wait(2.0)
    return story


def test_sizes_that_differ_and_that_nobody_waits_for_are_a_warning() -> None:
    """2 x H200, NCCL 2.28.9: 4M against 3M elements, and the job went on."""
    good = ("all_reduce", 8)
    story = told(calls(0, good, ("all_reduce", 4 << 20), good), calls(1, good, ("all_reduce", 3 << 20), good))

    found = story.the("rank-desync")
    assert (found.severity.value, found.cause, found.ranks) == ("warning", "collectives_differ", (0, 1))
    assert "rank 0 called all_reduce [4194304]" in found.summary
    assert "(call 2 of group 1 of ranks 0-1)" in found.summary and "1 of 3 calls" in found.summary


def test_the_one_that_calls_something_else_is_named() -> None:
    other, usual = ("all_gather", 8), ("all_reduce", 8)
    everybody = (0, 1, 2)
    story = told(
        calls(0, usual, usual, members=everybody),
        calls(1, other, other, members=everybody),
        calls(2, usual, usual, members=everybody),
    )

    found = story.the("rank-desync")
    assert (found.ranks, found.waiting_ranks, found.confidence.value) == ((1,), (0, 2), "high")


@pytest.mark.parametrize(
    "second",
    [
        [("all_reduce", 8), ("all_reduce", 8)],
        [("all_reduce", 8)],  # one call behind
        [("all_reduce", 8), ("all_to_all", 9)],
    ],
)
def test_calls_that_fit_or_may_differ_or_are_not_there_say_nothing(second: list[tuple[str, int]]) -> None:
    last = "all_to_all" if len(second) > 1 and second[1][0] == "all_to_all" else "all_reduce"

    assert told(calls(0, ("all_reduce", 8), (last, 8)), calls(1, *second)).findings() == []


@pytest.mark.parametrize(
    "name", ["gpu-drills/starved-rank", "h200-live/missed-collective-recorder", "h200-live/loop-slow"]
)
def test_recorders_of_real_jobs_have_nothing_that_does_not_fit(name: str) -> None:
    _, changes, _ = replay([CAPTURES / name])

    assert "rank-desync" not in {change.finding.id for change in changes}


# --- all calls, in looks while the job moves


def ring(first: int, last: int, rank: int, *odd: int, size: int = 8) -> CallHistory:
    """`odd` are calls in which rank 1 has another size."""
    return history(
        trace(*(raw(seq, size=9 if rank and seq in odd else size) for seq in range(first, last))), rank
    )


def looked(*rounds: tuple[CallHistory, CallHistory]) -> Story:
    story = Story([PassedMismatchDetector()], world=2)
    for one in rounds:
        story.tell(*one)
        story.wait(64.0)
    return story


def test_one_call_of_many_that_does_not_fit_is_told_from_looks_alone() -> None:
    story = looked((ring(1, 1500, 0), ring(1, 1500, 1, 300)))

    finding = story.the("rank-desync")
    assert "call 300 of default_pg" in finding.summary and "1 of 1499 calls" in finding.summary
    assert story.engine.not_checked() == []


def test_call_that_two_looks_have_is_counted_once_and_stays_told() -> None:
    story = looked(
        (ring(1, 1000, 0), ring(1, 1000, 1, 300)),
        (ring(200, 1900, 0), ring(200, 1900, 1, 300)),
        (ring(1500, 2900, 0), ring(1500, 2900, 1)),
    )

    assert "1 of 999 calls" in story.the("rank-desync").summary
    assert story.engine.not_checked() == []


def test_share_of_calls_that_went_by_between_looks_is_not_checked() -> None:
    story = looked((ring(1, 1001, 0), ring(1, 1001, 1)), (ring(3001, 4001, 0), ring(3001, 4001, 1)))

    assert story.findings() == []
    (line,) = story.engine.not_checked()
    assert line.what == "whether all collectives fit together" and line.reason.startswith(
        "2000 of 4000 calls (50 %)"
    )


def test_two_nodes_look_each_at_their_own_groups_and_say_what_they_do_not_compare() -> None:
    story = Story([PassedMismatchDetector()], world=4, nodes=2)
    for rank in (2, 3):
        place = dataclasses.replace(found(rank, 4, 2).placement, host="node-1")
        story.tell(RankFound(rank, place, ""))
    for rank in (0, 1):
        dump = trace(raw(1, group="1"), raw(2, group="1", size=9 - rank))
        dump["pg_config"]["0"]["ranks"] = "[0, 1, 2, 3]"
        dump["entries"].append(raw(1, size=7 + rank))
        story.tell(history(dump, rank))
    story.wait(2.0)

    assert "call 2 of group 1 of ranks 0-1" in story.the("rank-desync").summary
    (line,) = story.engine.not_checked()
    assert "span nodes" in line.what


# --- what differs by intent, or is not the same call

OTHERS = [raw(1), raw(2)]


def of_op(op: str, *sizes: tuple[int, int]) -> tuple[list[Raw], ...]:
    """What each rank gives and gets in one such call."""
    return tuple([*OTHERS, raw(3, op, size, out=out), raw(4)] for size, out in sizes)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(of_op("broadcast", (8, 8), (8, 0)), id="broadcast"),
        pytest.param(of_op("reduce", (8, 8), (8, 0)), id="reduce"),
        pytest.param(of_op("scatter", (16, 8), (0, 8)), id="scatter"),
        pytest.param(of_op("gather", (8, 16), (8, 0)), id="gather"),
        pytest.param(of_op("all_to_all", (10, 6), (8, 12)), id="uneven splits"),
        pytest.param(
            ([*OTHERS, raw(3, "all_to_all", 8)], [*OTHERS, raw(3, "all_to_allv", 6, out=8)]),
            id="splits that only one rank gives",
        ),
        pytest.param(of_op("reduce_scatter_v", (16, 6), (16, 10)), id="reduce_scatter_v"),
        pytest.param(of_op("all_gather_v", (6, 16), (10, 16)), id="all_gather_v"),
        pytest.param(of_op("_broadcast_oop", (6, 6), (10, 10)), id="a part of an uneven all_gather"),
        pytest.param(of_op("all_reduce_barrier", (1, 1), (2, 2)), id="barrier"),
        pytest.param(of_op("ALLGATHER_coalesced", (6, 12), (8, 16)), id="coalesced in one"),
        pytest.param(
            (
                [*OTHERS, raw(3, size=5), raw(3, size=6), raw(3, "coalesced")],
                [*OTHERS, raw(3, size=6), raw(3, size=5), raw(3, "coalesced")],
            ),
            id="coalesced parts",
        ),
        pytest.param(
            (
                [*OTHERS, raw(1, "send 0->1", 5, p2p=True), raw(2, "recv 0<-1", 4, p2p=True)],
                [*OTHERS, raw(1, "recv 1<-0", 5, p2p=True), raw(2, "send 1->0", 4, p2p=True)],
            ),
            id="send and recv",
        ),
        pytest.param(
            ([raw(seq) for seq in range(1, 9)], [raw(seq) for seq in range(5, 20)]),
            id="partly the same calls",
        ),
        pytest.param(
            ([raw(seq) for seq in range(1, 9)], [raw(seq, size=9) for seq in range(9, 20)]),
            id="no call in both",
        ),
        pytest.param(
            ([*OTHERS, raw(3, size=9, state="started")], [*OTHERS, raw(3)]), id="a call that is under way"
        ),
        pytest.param(
            (
                [raw(seq, size=9) for seq in range(90, 120)],
                [*(raw(seq, size=9) for seq in range(90, 121)), *(raw(seq) for seq in range(1, 120))],
            ),
            id="a group that one rank has made anew",
        ),
        pytest.param(
            (
                [*(raw(seq, size=9) for seq in range(90, 121)), *(raw(seq) for seq in range(1, 95))],
                [*(raw(seq, size=9) for seq in range(90, 121)), *(raw(seq) for seq in range(1, 120))],
            ),
            id="a group that both have made anew",
        ),
    ],
)
def test_calls_that_differ_by_intent_say_nothing(entries: tuple[list[Raw], ...]) -> None:
    dumps = [trace(*one) for one in entries]

    assert looked((history(dumps[0], 0), history(dumps[1], 1))).findings() == []


def test_ring_of_the_attempt_before_is_not_compared_with_that_of_this_one() -> None:
    story = Story([PassedMismatchDetector()], world=2)
    old = [dataclasses.replace(ring(1, 100, rank, size=9), pid=found(rank).placement.pid) for rank in (0, 1)]
    story.tell(old[0])
    for rank in (0, 1):
        placement = dataclasses.replace(found(rank).placement, pid=5000 + rank, start_ticks=99)
        story.tell(RankFound(rank, placement, ""))
    story.tell(old[0], dataclasses.replace(ring(1, 100, 1), pid=5001))
    story.wait(2.0)

    assert story.findings() == []


def test_rank_that_does_not_answer_keeps_its_groups_from_being_compared() -> None:
    story = Story([PassedMismatchDetector()], world=3)
    for rank in (0, 1):
        story.tell(history(trace(raw(1, size=8 + rank), members="[0, 1, 2]"), rank))
    story.wait(2.0)

    assert story.findings() == []


@pytest.mark.parametrize(
    ("capture", "words", "call", "of"),
    [
        ("passed-mismatch", "rank 0 called broadcast [8] Float, rank 1 called broadcast [8] Int", 61, 157),
        (
            "passed-mismatch-h100",
            "rank 0 called all_reduce [4194304] Float, rank 1 called all_reduce [3145728] Float",
            598,
            1318,
        ),
    ],
)
def test_look_at_real_ranks_tells_the_one_call_that_did_not_fit(
    capture: str, words: str, call: int, of: int
) -> None:
    """gloo, and NCCL 2.28 on two H100."""
    _, changes, _ = replay([CAPTURES / "fr" / capture])

    (change,) = [one for one in changes if one.finding.id == "rank-desync"]
    assert words in change.finding.summary
    assert (
        f"call {call} of default_pg" in change.finding.summary
        and f"1 of {of:,} calls".replace(",", "") in change.finding.summary
    )
