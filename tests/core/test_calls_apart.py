"""Where ranks' calls were first not the same, by all that their recorders keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diag.model.observations import CallHistory, CallSequence, CollectiveEntry, Frame
from diag.state.calls_apart import CallsApart, first_apart

MAIN = Frame("main", "/job/train.py", 61)
# Of a call of this letter: its operation, and the lines that lead to it.
KINDS = {
    "g": ("all_reduce", (MAIN, Frame("backward", "/job/train.py", 50))),
    "p": ("all_reduce", (MAIN, Frame("backward", "/job/train.py", 46), Frame("backward", "/job/train.py", 50))),
    "q": ("all_reduce", (MAIN, Frame("backward", "/job/train.py", 47), Frame("backward", "/job/train.py", 50))),
    "n": ("all_reduce", (Frame("main", "/job/train.py", 88), Frame("log_grad_norm", "/job/metrics.py", 12))),
    "l": ("all_gather", (Frame("main", "/job/train.py", 95),)),
    "s": ("broadcast", (Frame("main", "/job/train.py", 101),)),
    "r": ("broadcast", (Frame("main", "/job/train.py", 103),)),
    "t": ("broadcast", (Frame("main", "/job/train.py", 105),)),
}  # fmt: skip


def history(calls: str, *, first: int = 1, lines: bool = True) -> CallHistory:
    letters = sorted({*calls})
    kinds = tuple(
        CollectiveEntry(
            "gloo", "0", "default_pg", 0, 0, False, KINDS[one][0], ((4,),), ((4,),), ("Float",), "", False, False, 0, 0.0
        )
        for one in letters
    )  # fmt: skip
    stacks = tuple(KINDS[one][1] for one in letters) if lines else ()
    made = tuple((first + at, letters.index(one)) for at, one in enumerate(calls))
    return CallHistory(
        0, 1.0, 7, ("gloo",), (CallSequence("gloo", "0", "default_pg", (), kinds, made, stacks),)
    )


def apart_of(*ranks: str, first: int = 1, lines: bool = True) -> CallsApart | None:
    return first_apart({rank: history(calls, first=first, lines=lines) for rank, calls in enumerate(ranks)})


def sides(found: CallsApart) -> Sequence[tuple[tuple[int, ...], int]]:
    return [(one.ranks, one.stack[-1].line) for one in (found.odd, found.rest)]


def test_rank_that_made_a_call_more_is_named_with_the_line_of_that_call() -> None:
    step = "ggl"
    found = apart_of(step * 9, step * 9, step * 4 + "n" + step * 5, step * 9)
    assert found is not None
    assert (found.seq, found.is_known, found.ahead, found.is_least) == (13, True, 1, False)
    assert found.ranks == (0, 1, 2, 3)
    assert sides(found) == [((2,), 12), ((0, 1, 3), 50)]


def test_of_two_ranks_the_one_with_a_line_that_nobody_had_run_before_is_the_odd_one() -> None:
    found = apart_of(
        "g" * 46 + "g" * 13 + "l", "g" * 46 + "pq" + "g" * 12
    )  # a batch cut in two, each half reduced
    assert found is not None
    assert (found.seq, found.odd.ranks, found.is_known) == (47, (1,), True)
    assert (found.ahead, found.is_least) == (1, True)  # a call more than the others, or two
    assert found.odd.stack[1].line == 46


def test_rank_that_left_a_call_out_is_a_call_behind() -> None:
    step = "gnl"
    found = apart_of(step * 9, step * 5 + "gl" + step * 4)
    assert found is not None
    assert (found.seq, found.odd.ranks, found.is_known, found.ahead) == (17, (1,), True, -1)
    assert sides(found) == [((1,), 95), ((0,), 12)]


def test_of_two_ranks_none_is_the_odd_one_where_both_calls_are_new() -> None:
    found = apart_of("ggl" * 4 + "s" + "ggl" * 3, "ggl" * 4 + "rt" + "ggl" * 3)
    assert found is not None
    assert (found.is_known, found.odd.ranks, found.rest.ranks) == (False, (0,), (1,))


def test_without_lines_calls_are_told_by_operation_and_tensors() -> None:
    found = apart_of("ggl" * 9, "ggl" * 4 + "s" + "ggl" * 5, lines=False)
    assert found is not None
    assert (found.seq, found.odd.ranks, found.odd.call.op, found.odd.stack) == (13, (1,), "broadcast", ())


def test_a_call_that_differs_and_one_of_each_is_no_call_too_many() -> None:
    assert apart_of("ggs" * 9 + "g", "ggr" * 9 + "g") is None  # who sends, and who receives
    assert apart_of("ggl" * 5 + "s" + "ggl" * 4, "ggl" * 5 + "r" + "ggl" * 4) is None  # once


def test_the_call_in_which_it_came_to_light_is_no_earlier_one() -> None:
    assert apart_of("ggl" * 9 + "s", "ggl" * 9 + "g") is None


def test_who_is_behind_has_left_nothing_out() -> None:
    assert apart_of("ggl" * 9, "ggl" * 6) is None


def test_nothing_is_said_where_the_difference_is_older_than_what_is_kept() -> None:
    assert apart_of("ggl" * 20, "lgg" * 20, first=500) is None
    assert apart_of("ggl" * 20, "ggl" * 9 + "n" + "ggl" * 11, first=500) is not None


def test_nothing_is_said_of_sequences_that_have_little_in_common() -> None:
    assert apart_of("ggl" * 20, "gsrtl" * 12) is None


def test_a_group_that_was_made_anew_under_its_name_is_not_compared() -> None:
    made, again = history("ggl" * 9), history("ggl" * 4 + "n" + "ggl" * 5)
    anew = tuple((seq if seq < 6 else seq - 5, kind) for seq, kind in again.groups[0].calls)
    group = CallSequence("gloo", "0", "default_pg", (), again.groups[0].kinds, anew, again.groups[0].stacks)
    assert first_apart({0: made, 1: CallHistory(1, 1.0, 8, ("gloo",), (group,))}) is None


def test_groups_of_one_name_with_other_members_are_not_compared() -> None:
    made = {rank: history("ggl" * 9 if rank else "ggl" * 4 + "n" + "ggl" * 5) for rank in range(2)}
    apart = {
        rank: replace(one, groups=(replace(one.groups[0], members=(rank, rank + 2)),))
        for rank, one in made.items()
    }
    assert first_apart(made) is not None
    assert first_apart(apart) is None


def test_nothing_is_said_of_ranks_that_call_in_more_ways_than_a_few() -> None:
    """Each way is laid beside the most common one: of hundreds that would take a minute."""
    step = "ggl"
    odd = [step * at + "n" + step * (12 - at) for at in range(2, 11)]
    assert apart_of(step * 12, step * 12, *odd[:1]) is not None
    assert apart_of(step * 12, step * 12, *odd) is None
