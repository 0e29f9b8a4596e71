"""Which call was due on a rank, by the calls that it made before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder
from diag.model.observations.collectives import CALLS_KEPT
from diag.state.call_order import Passed, passed_calls
from diag.state.wait_graph import build

Call = tuple[str, str, int]  # group, operation, elements
STEP: tuple[Call, ...] = (
    ("ep", "all_to_all", 3), ("ep", "all_to_all", 96), ("0", "all_reduce", 48), ("0", "all_reduce", 9),
)  # fmt: skip


def dump_of(rank: int, calls: Sequence[Call], *, pending: int = 1) -> FlightRecorder:
    """gloo's: it names no members. The last `pending` calls are not over."""
    counts: dict[str, int] = {}
    entries = []
    for number, (group, op, size) in enumerate(calls):
        seq = counts[group] = counts.get(group, 0) + 1
        waits = number >= len(calls) - pending
        desc = "default_pg" if group == "0" else "undefined"
        entries.append(
            CollectiveEntry(
                "gloo", group, desc, seq, seq, False, op, ((size,),), ((size,),), ("Float",), "scheduled",
                not waits, waits, number, 0.0,
            )
        )  # fmt: skip
    known = tuple(
        CollectiveGroup("gloo", name, "default_pg" if name == "0" else "undefined", (), count, 0)
        for name, count in counts.items()
    )
    return FlightRecorder(rank, 0.0, "2.10", ("gloo",), known, tuple(entries))


def passed(calls: Iterable[Sequence[Call]]) -> list[Passed]:
    dumps = {rank: dump_of(rank, made) for rank, made in enumerate(calls)}
    return passed_calls(build(dumps, len(dumps)).fronts, dumps, dumps)


def names(found: list[Passed]) -> list[tuple[int, str, int, bool]]:
    return [(one.rank, one.front.group, one.front.seq, one.seen_next) for one in found]


def test_call_that_came_each_time_before_was_due() -> None:
    """Two ranks are in the exchange of the eighth step; the third went on to its reduction without it."""
    before = STEP * 7
    waiting = (*before, STEP[0])

    assert names(passed([waiting, (*before, STEP[2]), waiting])) == [(1, "ep", 15, True)]


def test_rank_that_has_come_to_a_call_it_never_made_before_has_left_out_the_one_that_was_due() -> None:
    before = STEP * 7

    assert names(passed([(*before, STEP[0]), (*before, ("end", "all_gather", 1))])) == [(1, "ep", 15, False)]


def test_calls_of_one_number_that_differ_are_held_against_what_came_before() -> None:
    before = (("0", "broadcast", 8), ("0", "all_reduce", 48)) * 5
    due, other = ("0", "broadcast", 8), ("0", "all_gather", 4)

    assert names(passed([(*before, due), (*before, other)])) == [(1, "0", 11, False)]


def test_call_of_another_size_than_before_is_blamed_on_whose_size_is_new() -> None:
    """Sizes that are new on all ranks, or change anyway, tell nothing."""
    gradients = ("0", "all_reduce", 4096)
    before = (gradients,) * 12
    found = passed([(*before, gradients), (*before, ("0", "all_reduce", 1))])

    assert [(one.rank, one.front.seq, one.resized) for one in found] == [(1, 13, True)]
    assert passed([(*before, ("0", "all_reduce", 7)), (*before, ("0", "all_reduce", 1))]) == []
    uneven = tuple(("0", "all_reduce", 40 + step) for step in range(12))
    assert passed([(*uneven, ("0", "all_reduce", 52)), (*uneven, ("0", "all_reduce", 51))]) == []


def test_ranks_without_a_history_show_nothing() -> None:
    assert passed([(("ep", "all_to_all", 3),), (("0", "all_reduce", 48),)]) == []
    assert passed([(*STEP[:1] * 2, STEP[0]), (*STEP[:1] * 2, STEP[2])]) == []


def test_rank_that_is_where_it_always_came_next_has_passed_nothing() -> None:
    """Whoever has gone ahead is the other one, which has made a call out of turn."""
    before = STEP * 7
    found = passed([(*before, STEP[0]), (*before, STEP[3])])

    assert [one.rank for one in found] == [1]


def test_sizes_that_change_from_step_to_step_are_of_no_account_in_an_exchange() -> None:
    before = [
        call
        for step in range(7)
        for call in (STEP[0], ("ep", "all_to_all", 90 + step), *STEP[2:])
    ]  # fmt: skip

    assert names(passed([(*before, STEP[0]), (*before, STEP[2])])) == [(1, "ep", 15, True)]


def test_order_is_read_from_where_on_every_group_is_whole() -> None:
    """Of each group only the last calls are kept: before the first one that is kept of the busier group, the other one's
    stand alone, as if the busier one's had not been made between them."""
    step = (("a", "all_reduce", 1),) * 10 + (("b", "all_gather", 2),)
    dumps = {rank: dump_of(rank, (*step * 30, step[0] if rank else step[-1])) for rank in range(2)}
    for rank, dump in dumps.items():
        kept = [call for call in dump.entries if call.group == "a"][-CALLS_KEPT:]
        kept += [call for call in dump.entries if call.group == "b"][-CALLS_KEPT:]
        dumps[rank] = replace(dump, entries=tuple(sorted(kept, key=lambda call: call.record_id)))

    found = passed_calls(build(dumps, 2).fronts, dumps, dumps)
    assert [(one.rank, one.front.group) for one in found] == [(0, "a")]


def test_loop_that_goes_round_as_often_as_it_likes_makes_no_call_due() -> None:
    """A generation that ends when its sentences do: the other rank's ended one call earlier."""
    before = [
        call for rounds in (4, 6, 5, 7, 5, 6) for call in (*[("0", "all_gather", 8)] * rounds, ("0", "all_reduce", 1))
    ] + [("0", "all_gather", 8)] * 5  # fmt: skip

    assert passed([(*before, ("0", "all_gather", 8)), (*before, ("0", "all_reduce", 1))]) == []


def test_order_that_changes_on_all_ranks_leaves_nothing_out() -> None:
    """Three groups of two, in a circle: each rank was due in another one than it is in."""
    north, east, south = (("north", "all_reduce", 4), ("east", "all_reduce", 4), ("south", "all_reduce", 4))
    calls = [
        (*(north, south) * 9, south),
        (*(north, east) * 9, east),
        (*(south, east) * 9, south),
    ]  # fmt: skip

    assert all(one.rank != 0 for one in passed(calls))
