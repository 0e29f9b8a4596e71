"""Who waits for whom: named absentees, cycles, mismatches; jitter and ignorance are not blamed."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder
from diag.sources.collectives import flight_recorder
from diag.state.wait_graph import WaitGraph, build

FOLDER = Path(__file__).parents[1] / "captures" / "fr"


def call(
    group: str,
    seq: int,
    op: str = "all_reduce",
    *,
    pending: bool = True,
    sizes: tuple[int, ...] = (8,),
    outputs: tuple[int, ...] | None = None,
    p2p: bool = False,
    backend: str = "nccl",
) -> CollectiveEntry:
    shapes = ((sizes,), (sizes if outputs is None else outputs,))
    state = "scheduled" if pending else "completed"
    return CollectiveEntry(
        backend,
        group,
        "",
        seq,
        seq,
        p2p,
        op,
        *shapes,
        ("Float", "Float"),
        state,
        not pending,
        pending,
        seq,
        0.0,
    )


def recorder(
    rank: int,
    entries: Iterable[CollectiveEntry],
    groups: dict[str, tuple[int, ...]] | None = None,
    last: dict[str, int] | None = None,
) -> FlightRecorder:
    known = tuple(
        CollectiveGroup("nccl", name, "", ranks, (last or {}).get(name))
        for name, ranks in (groups or {}).items()
    )
    return FlightRecorder(rank, 0.0, "2.10", ("gloo", "nccl"), known, tuple(entries))


WORLD = {"0": (0, 1, 2, 3), "1": (0, 2), "2": (1, 3)}


def of_capture(name: str) -> WaitGraph:
    dumps = {}
    for rank in (0, 1):
        path = FOLDER / f"{name}_{rank}"
        if path.exists():
            facts = flight_recorder.parse(
                Record(flight_recorder.SOURCE, flight_recorder.load_file(path), rank=rank)
            )
            dumps[rank] = next(fact for fact in facts if isinstance(fact, FlightRecorder))
    return build(dumps, world_size=2)


@pytest.mark.parametrize(("name", "seq"), [("data_hang", 26), ("skip_collective", 22)])
def test_real_absent_rank_is_named_and_the_waiting_one_is_not(name: str, seq: int) -> None:
    found = of_capture(name).explain()
    assert (found.kind, found.culprits, found.certain) == ("absent_rank", (1,), True)
    assert {rank: (wait.seq, wait.op) for rank, wait in found.waiting.items()} == {0: (seq, "all_reduce")}


def test_real_killed_rank_has_no_dump_and_is_only_suspected() -> None:
    found = of_capture("rank_killed").explain()
    assert (found.kind, found.culprits, found.certain) == ("absent_rank", (1,), False)


def test_real_mismatch_of_two_ranks_blames_both_and_says_who_called_what() -> None:
    found = of_capture("mismatch_op").explain()
    assert (found.kind, found.culprits) == ("mismatch", (0, 1))
    assert {(item.op, item.ranks) for item in found.signatures} == {("all_reduce", (0,)), ("broadcast", (1,))}
    assert {rank: wait.op for rank, wait in found.waiting.items()} == {0: "all_reduce", 1: "broadcast"}


def test_rank_behind_a_subgroup_is_the_culprit_not_the_one_it_holds_up() -> None:
    # 0 waits for 2 in their own group, so 1 and 3 miss both in the world
    dumps = {
        0: recorder(0, [call("1", 5)], WORLD, {"0": 9}),
        1: recorder(1, [call("2", 5, pending=False), call("0", 10)], WORLD),
        2: recorder(2, [call("1", 4, pending=False)], WORLD, {"0": 9}),
        3: recorder(3, [call("2", 5, pending=False), call("0", 10)], WORLD),
    }
    found = build(dumps).explain()
    assert (found.kind, found.culprits, found.certain) == ("absent_rank", (2,), True)
    assert {rank: wait.group for rank, wait in found.waiting.items()} == {0: "1", 1: "0", 3: "0"}


def test_two_groups_in_opposite_order_are_a_cycle() -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    dumps = {0: recorder(0, [call("a", 1)], groups), 1: recorder(1, [call("b", 1)], groups)}
    found = build(dumps).explain()
    assert (found.kind, found.culprits) == ("order_cycle", (0, 1))


def test_those_who_wait_for_a_cycle_are_not_in_it() -> None:
    groups = {"a": (0, 1), "b": (0, 1), "0": (0, 1, 2)}
    dumps = {
        0: recorder(0, [call("a", 1)], groups),
        1: recorder(1, [call("b", 1)], groups),
        2: recorder(2, [call("0", 1)], groups),
    }
    assert build(dumps).explain().culprits == (0, 1)


def test_one_of_three_that_calls_something_else_is_the_minority() -> None:
    groups = {"0": (0, 1, 2)}
    dumps = {
        rank: recorder(rank, [call("0", 3, "broadcast" if rank == 1 else "all_reduce")], groups)
        for rank in range(3)
    }
    found = build(dumps).explain()
    assert (found.kind, found.culprits) == ("mismatch", (1,))


def test_one_of_three_with_another_size_is_the_minority() -> None:
    dumps = {
        rank: recorder(rank, [call("0", 3, sizes=(7 if rank == 2 else 8,))], {"0": (0, 1, 2)})
        for rank in range(3)
    }
    assert build(dumps).explain().culprits == (2,)


@pytest.mark.parametrize("op", ["all_gather_v", "all_to_allv", "_broadcast_oop", "barrier"])
def test_operations_of_uneven_size_by_intent_are_no_mismatch(op: str) -> None:
    dumps = {
        rank: recorder(rank, [call("0", 3, op, sizes=(rank,), outputs=(1 - rank,))], {"0": (0, 1)})
        for rank in (0, 1)
    }
    assert build(dumps).explain().kind == "all_joined"


def test_root_of_a_gather_alone_has_outputs() -> None:
    dumps = {
        rank: recorder(rank, [call("0", 3, "gather", outputs=() if rank else (8, 8))], {"0": (0, 1)})
        for rank in (0, 1)
    }
    assert build(dumps).explain().kind == "all_joined"


def test_all_to_all_that_receives_other_than_was_sent_is_a_mismatch_of_nobody() -> None:
    dumps = {
        rank: recorder(rank, [call("0", 3, "all_to_all", sizes=(4,), outputs=(5,))], {"0": (0, 1)})
        for rank in (0, 1)
    }
    found = build(dumps).explain()
    assert (found.kind, found.culprits) == ("mismatch", ())


def test_same_shape_told_otherwise_is_no_mismatch() -> None:
    dumps = {
        rank: recorder(rank, [call("0", 3, sizes=(2, 4) if rank else (8,))], {"0": (0, 1)}) for rank in (0, 1)
    }
    assert build(dumps).explain().kind == "all_joined"


def test_pipeline_stages_that_wait_for_each_other_lead_to_the_first_that_does_not() -> None:
    groups = {"pp": (1, 3, 5, 7)}  # sends are told in the group's own ranks
    dumps = {
        1: recorder(1, [], groups),
        3: recorder(3, [call("pp", 1, "recv 1<-0", p2p=True)], groups),
        5: recorder(5, [call("pp", 1, "recv 2<-1", p2p=True)], groups),
        7: recorder(7, [call("pp", 1, "recv 3<-2", p2p=True)], groups),
    }
    found = build(dumps).explain()
    assert (found.kind, found.culprits) == ("absent_rank", (1,))
    assert set(found.waiting) == {3, 5, 7}


def test_send_whose_receive_is_pending_has_met_its_peer() -> None:
    groups = {"pp": (0, 1)}
    dumps = {
        0: recorder(0, [call("pp", 1, "send 0->1", p2p=True)], groups),
        1: recorder(1, [call("pp", 4, "recv 1<-0", p2p=True)], groups),
    }
    assert build(dumps).explain().kind == "all_joined"


def test_two_that_both_receive_first_are_a_cycle() -> None:
    groups = {"pp": (0, 1)}
    dumps = {
        0: recorder(0, [call("pp", 1, "recv 0<-1", p2p=True)], groups),
        1: recorder(1, [call("pp", 1, "recv 1<-0", p2p=True)], groups),
    }
    assert build(dumps).explain().kind == "message_circle"


def test_stage_that_left_its_forward_pass_early_is_to_blame_for_the_circle() -> None:
    # NCCL's calls are enqueued ahead: what a rank waits in first counts
    groups = {"pp": (0, 1, 2)}
    dumps = {
        0: recorder(0, [call("pp", 4, "send 0->1", p2p=True), call("pp", 5, "recv 0<-1", p2p=True)], groups),
        1: recorder(1, [call("pp", 7, "recv 1<-2", p2p=True), call("pp", 8, "send 1->0", p2p=True)], groups),
        2: recorder(2, [call("pp", 4, "recv 2<-1", p2p=True)], groups),
    }
    found = build(dumps).explain()
    assert (found.kind, found.culprits) == ("message_circle", (1,))
    assert found.circle is not None and (found.circle.ranks, found.circle.behind) == ((1, 2), (0,))


def test_overwritten_entries_are_no_absence() -> None:
    # rank 1's ring has lost call 5, but its group's counter is far beyond
    groups = {"0": (0, 1)}
    dumps = {0: recorder(0, [call("0", 5)], groups), 1: recorder(1, [], groups, {"0": 900})}
    assert build(dumps).explain().kind == "all_joined"


def test_one_call_behind_is_jitter_until_it_stands_still() -> None:
    groups = {"0": (0, 1)}

    def at(seq: int) -> WaitGraph:
        return build(
            {
                0: recorder(0, [call("0", seq)], groups),
                1: recorder(1, [call("0", seq - 1, pending=False)], groups),
            }
        )

    assert at(8).still(at(7)).explain().kind == "no_pending"
    assert at(8).still(at(8)).explain().culprits == (1,)


def test_rank_without_a_dump_is_suspected_only_when_nobody_known_is_to_blame() -> None:
    groups = {"0": (0, 1, 2)}
    waits, absent = recorder(0, [call("0", 2)], groups), recorder(1, [], groups)
    assert build({0: waits, 1: absent}).explain().culprits == (1,)
    found = build({0: waits, 1: recorder(1, [call("0", 2)], groups)}).explain()
    assert (found.culprits, found.certain) == ((2,), False)


def test_nobody_pending_says_nothing() -> None:
    found = build({0: recorder(0, [call("0", 2, pending=False)])}, world_size=2).explain()
    assert (found.kind, found.culprits, found.certain) == ("no_pending", (), False)
    assert build({}).explain().kind == "no_pending"


def test_groups_of_one_name_on_other_ranks_are_kept_apart() -> None:
    dumps = {
        0: recorder(0, [call("tp", 5)], {"tp": (0, 1)}),
        1: recorder(1, [call("tp", 5)], {"tp": (0, 1)}),
        2: recorder(2, [call("tp", 2, pending=False)], {"tp": (2, 3)}),
        3: recorder(3, [], {"tp": (2, 3)}, {"tp": 2}),
    }
    assert build(dumps).explain().kind == "all_joined"


def test_gloo_group_of_unknown_members_is_not_certain() -> None:
    entry = call("5", 1, backend="gloo")
    dumps = {0: recorder(0, [entry]), 1: recorder(1, [])}
    assert build(dumps).explain().certain is False


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.integers(0, 4),
                st.sampled_from(["all_reduce", "send 0->1", "recv 9<-1", "coalesced", ""]),
                st.booleans(),
                st.booleans(),
            ),
            max_size=6,
        ),
    ),
    st.booleans(),
)
def test_any_picture_has_an_explanation_and_culprits_wait_for_nobody(
    picture: dict[int, list[tuple[str, int, str, bool, bool]]], known: bool
) -> None:
    groups = {"a": (0, 1, 2), "b": (1, 2, 3)} if known else {}
    dumps = {
        rank: recorder(
            rank,
            [call(group, seq, op, pending=pending, p2p=p2p) for group, seq, op, pending, p2p in calls],
            groups,
        )
        for rank, calls in picture.items()
    }
    found = build(dumps).explain()
    assert found.kind in (
        "absent_rank",
        "order_cycle",
        "message_circle",
        "mismatch",
        "all_joined",
        "no_pending",
    )
    if found.kind == "absent_rank":
        assert found.culprits and not set(found.culprits) & set(found.waiting)


def test_sixteen_thousand_ranks_in_three_groups(capsys: pytest.CaptureFixture[str]) -> None:
    size, width = 16384, 8
    world = tuple(range(size))
    tensor = [tuple(range(first, first + width)) for first in range(0, size, width)]
    data = [tuple(range(first, size, width)) for first in range(width)]
    culprit = 5000
    dumps = {}
    for rank in range(size):
        groups = {"0": world, "tp": tensor[rank // width], "dp": data[rank % width]}
        done = [call(name, seq, pending=False) for name in groups for seq in range(1, 11)]
        waits = "tp" if culprit in groups["tp"] else "dp" if culprit in groups["dp"] else "0"
        dumps[rank] = recorder(rank, done if rank == culprit else [*done, call(waits, 11)], groups)
    began = time.perf_counter()
    graph = build(dumps)
    found = graph.explain()
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    with capsys.disabled():
        print(
            f"\n16,384 ranks, {31 * size} entries: {took:.2f} s, process peak {peak} MiB, {len(graph.fronts)} fronts"
        )
    assert (found.kind, found.culprits, len(found.waiting)) == ("absent_rank", (culprit,), size - 1)
    assert took < 60


def test_ranks_each_at_a_call_of_its_own_stay_few_fronts_and_all_wait() -> None:
    # given a group in which everybody stands somewhere else, but rank 9 that has not come to anything
    size = 5000
    world = {"0": tuple(range(size))}
    dumps = {rank: recorder(rank, [] if rank == 9 else [call("0", rank + 1)], world) for rank in range(size)}

    graph = build(dumps)
    found = graph.explain()

    assert len(graph.fronts) == 64
    assert (found.kind, found.culprits, len(found.waiting)) == ("absent_rank", (9,), size - 1)


def test_half_of_sixteen_thousand_that_call_another_collective_are_both_told() -> None:
    size = 16384
    world = {"0": tuple(range(size))}
    dumps = {
        rank: recorder(rank, [call("0", 1, "broadcast" if rank % 2 else "all_reduce")], world)
        for rank in range(size)
    }

    found = build(dumps).explain()

    assert (found.kind, len(found.culprits)) == ("mismatch", size)
    assert (found.waiting[0].op, found.waiting[1].op) == ("all_reduce", "broadcast")


def test_call_that_shows_a_cycle_is_one_in_which_a_blamed_rank_waits() -> None:
    groups = {"0": (0, 1, 2), "a": (0, 1), "b": (0, 1)}
    dumps = {
        0: recorder(0, [call("a", 1)], groups),
        1: recorder(1, [call("b", 1)], groups),
        2: recorder(2, [call("0", 1)], groups),
    }
    found = build(dumps).explain()

    assert found.front is not None and found.front.waiting == (0,)


@pytest.mark.parametrize(("waiting_for_1", "culprits"), [((3, 4, 5), (0, 1, 2)), ((3, 4, 5, 6), (1,))])
def test_rank_of_a_cycle_is_blamed_alone_only_where_far_more_wait_for_it(
    waiting_for_1: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    """0 waits for 1, 1 for 2, 2 for 0; so do ranks outside of the cycle, three for 2."""
    groups = {
        "to1": (0, 1, *waiting_for_1),
        "to2": (1, 2, 3, 4),
        "to0": (2, 0),
    }
    dumps = {
        0: recorder(0, [call("to1", 1)], groups),
        1: recorder(1, [call("to2", 1)], groups),
        2: recorder(2, [call("to0", 1)], groups),
    }
    for rank in waiting_for_1:
        calls = [call("to1", 1)] + [call("to2", 1)] * (rank in groups["to2"])
        dumps[rank] = recorder(rank, calls, groups)
    found = build(dumps).explain()

    assert (found.kind, found.culprits) == ("order_cycle", culprits)


def test_two_gloo_groups_that_each_lack_who_waits_in_the_other_are_a_cycle_but_not_for_certain() -> None:
    """Its recorder names no members: each group looks complete with those who have called in it."""
    dumps = {rank: recorder(rank, [call("ab"[rank], 1, backend="gloo")]) for rank in range(2)}
    found = build(dumps).explain()

    assert (found.kind, found.culprits, found.certain) == ("order_cycle", (0, 1), False)


def test_group_in_its_first_call_lacks_those_who_wait_for_whoever_is_in_it() -> None:
    """One rank has left the training for a gather in a group of its own: no call before has shown who belongs to that."""
    world = {"0": (0, 1, 2)}
    dumps = {
        0: recorder(0, [call("0", 187)], world),
        1: recorder(1, [call("end", 1, backend="gloo")], world, {"0": 186}),
        2: recorder(2, [call("0", 187)], world),
    }
    found = build(dumps).explain()

    assert (found.kind, found.culprits, found.certain) == ("order_cycle", (1,), False)


def test_group_whose_earlier_calls_have_shown_who_belongs_to_it_lacks_nobody_else() -> None:
    """Its call is only slow."""
    world = {"0": (0, 1, 2)}
    dumps = {
        0: recorder(0, [call("0", 187)], world),
        1: recorder(1, [call("end", 2, backend="gloo")], world, {"0": 186}),
        2: recorder(2, [call("0", 187)], world),
    }

    assert build(dumps).explain().kind == "all_joined"


def test_every_cycle_is_found_not_only_the_first() -> None:
    """Two pairs of ranks that have nothing to do with each other use their two groups in opposite order."""
    pairs = {"a": (0, 1), "b": (0, 1), "c": (2, 3), "d": (2, 3)}
    dumps = {
        rank: recorder(rank, [call(group, 1)], {name: of for name, of in pairs.items() if rank in of})
        for rank, group in enumerate("abcd")
    }

    assert build(dumps).cycles == ((0, 1), (2, 3))


def test_rank_in_two_calls_is_shown_in_the_one_that_lacks_somebody() -> None:
    groups = {"all": (0, 1), "other": (0, 2)}
    dumps = {
        0: recorder(0, [call("all", 1), call("other", 1)], groups),
        1: recorder(1, [call("all", 1)], {"all": (0, 1)}),
        2: recorder(2, [], {"other": (0, 2)}),
    }

    assert build(dumps).explain().waiting[0].group == "other"
