"""Calls that do not fit together: who has left one out, and what led past it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from tests.core.test_call_order import STEP, Call, dump_of
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.facts import pid_of
from tests.programs import line_of

BACKWARD = "_engine_run_backward torch/autograd/graph.py:869"
TEXT = """
def exchange(tokens):
    if not len(tokens):
        return tokens
    all_to_all(tokens)  # exchange


def layers(model, tokens):
    for layer in model:
        exchange(tokens)  # layers


def preview(model):
    model("x")  # preview


def train(loader, rank):
    for batch in loader:
        if budget.over():
            break
        exchange(batch)  # exchanges
        layers(model, batch)  # throughs
        if not finite(batch):
            continue
        loss.backward()  # backward
        all_reduce(loss)  # reduces
        if rank == 0:
            preview(model)  # previews
        barrier()  # barrier
    gather(loss)  # gathers


train([], 0)  # top
"""
# functions of their own below a line of `train`
BELOW = {"exchanges": ("exchange",), "throughs": ("layers", "exchange"), "previews": ("preview",)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def stacked(path: Path, mark: str, inside: str) -> list[str]:
    found = [f"<module> {path}:{line_of(TEXT, 'top')}", f"train {path}:{line_of(TEXT, mark)}"]
    found += [f"{name} {path}:{line_of(TEXT, name)}" for name in BELOW.get(mark, ())]
    return [*found, inside]


def found(path: Path, ranks: Sequence[tuple[str, Sequence[Call]]], inside: str = REDUCE) -> Finding:
    """Each rank's line and its calls, of which the last one is not over. `inside`: in what all but rank 1 are."""
    stacks = {
        rank: stacked(path, mark, REDUCE if rank == 1 else inside) for rank, (mark, _) in enumerate(ranks)
    }
    story = steady(world=len(ranks))
    for _ in range(3):
        story.still(20.0, stacks)
        for rank, (_, calls) in enumerate(ranks):
            if path.exists():
                read(story, path, rank, stacks[rank])
            story.tell(replace(dump_of(rank, calls), emitted=story.now, pid=pid_of(rank)))
    story.still(20.0, stacks)
    return story.the("hang")


BEFORE = STEP * 7


@pytest.mark.parametrize("text", [True, False])
def test_rank_that_left_a_call_out_is_named_with_what_led_past_it(path: Path, text: bool) -> None:
    waits = ("exchanges", (*BEFORE, STEP[0]))
    if not text:
        path.unlink()
    hang = found(path, [waits, ("reduces", (*BEFORE, STEP[2])), waits])

    assert (hang.klass, hang.cause) == ("collective_mismatch", "call_skipped")
    assert (hang.ranks, hang.waiting_ranks) == ((1,), (0, 2))
    assert "rank 1 has skipped all_to_all 15 of group ep of ranks 0-2" in hang.summary
    assert "waited in all_reduce 15 of default_pg" in hang.summary
    assert ("`if not len(tokens):`" in hang.summary) is text
    assert ("see the condition" in hang.advice) is text
    assert "with nothing to give" in hang.advice


def test_early_return_in_each_round_of_a_loop_over_layers_is_no_loop_that_was_left(path: Path) -> None:
    waits = ("throughs", (*BEFORE, STEP[0]))
    hang = found(path, [waits, ("reduces", (*BEFORE, STEP[2])), waits])

    assert (hang.cause, hang.ranks) == ("call_skipped", (1,))
    assert (
        "what leads past that call: `if not len(tokens):`" in hang.summary and "has left" not in hang.summary
    )


def test_rank_that_went_on_to_the_next_step_shows_the_continue(path: Path) -> None:
    """The condition of an early return in a function that it is in itself is none of it."""
    before = (*BEFORE, *STEP[:2])
    waits = ("reduces", (*before, STEP[2]))
    hang = found(path, [waits, ("exchanges", (*before, STEP[0])), waits])

    assert (hang.cause, hang.ranks) == ("call_skipped", (1,))
    assert "`if not finite(batch):`" in hang.summary and "continues" in hang.summary
    assert "len(tokens)" not in hang.summary


def test_rank_that_ended_backward_left_parameters_unused(path: Path) -> None:
    step = (("0", "all_reduce", 900), ("0", "all_reduce", 40), ("log", "all_reduce", 1))
    waits = ("backward", (*step * 7, step[0]))
    hang = found(path, [waits, ("reduces", (*step * 7, step[2])), waits], inside=BACKWARD)

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("gradient_left_out", (1,), (0, 2))
    assert "rank 1 has ended backward without all_reduce 15 of default_pg" in hang.summary
    assert "find_unused_parameters=True" in hang.advice


def test_rank_of_which_it_is_not_known_whether_it_ran_backward_may_have_left_it_out(path: Path) -> None:
    step = (("0", "all_reduce", 900), ("0", "all_reduce", 40), ("log", "all_reduce", 1))
    waits = ("backward", (*step * 7, step[0]))
    path.unlink()
    hang = found(path, [waits, ("reduces", (*step * 7, step[2])), waits], inside=BACKWARD)

    assert (hang.cause, hang.ranks) == ("call_skipped", (1,))
    assert "where backward itself was run" in hang.advice


@pytest.mark.parametrize("world", [2, 3])
def test_rank_that_left_the_loop_is_named_with_the_way_out(path: Path, world: int) -> None:
    waits = ("exchanges", (*BEFORE, STEP[0]))
    ranks = [waits, ("gathers", (*BEFORE, ("end", "all_gather", 1))), waits][:world]
    hang = found(path, ranks)

    assert (hang.cause, hang.ranks) == ("left_the_loop", (1,))
    assert "rank 1 has left the loop `for batch in loader:`" in hang.summary
    assert "`if budget.over():`" in hang.summary and "breaks it off" in hang.summary
    assert "decided together" in hang.advice


def test_rank_under_a_condition_on_its_number_is_named_though_its_call_is_one_of_each_step(
    path: Path,
) -> None:
    """A forward of a sharded model, in which the next step would begin: the other one is the first to come to a call that
    was never made before."""
    hang = found(path, [("previews", (*BEFORE, STEP[0])), ("barrier", (*BEFORE, ("control", "barrier", 1)))])

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("call_of_some_ranks", (0,), (1,))
    assert "rank 0 is under `if rank == 0:`" in hang.summary and "where rank 1 is not" in hang.summary
    assert "let all ranks run that code" in hang.advice
    assert "network" not in hang.advice and "src" not in hang.advice


def test_two_groups_in_opposite_order_from_the_first_step_on_are_blamed_on_both(path: Path) -> None:
    path.unlink()
    hang = found(path, [("exchanges", STEP[:1]), ("reduces", STEP[2:3])])

    assert (hang.cause, hang.ranks) == ("groups_in_opposite_order", (0, 1))


def test_most_ranks_in_a_call_never_made_before_wait_for_who_did_not_come(path: Path) -> None:
    path.unlink()
    there = ("gathers", (*BEFORE, ("0", "all_gather", 1)))
    hang = found(path, [("exchanges", (*BEFORE, ("0", "all_reduce", 48))), there, there])

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("calls_differ", (0,), (1, 2))


def test_ranks_at_one_line_have_left_no_call_out_but_come_to_them_in_another_order(path: Path) -> None:
    """A loop over the groups, in an order that each rank makes for itself; and no rank is more to blame than another."""
    hang = found(path, [("reduces", (*BEFORE, STEP[0])), ("reduces", (*BEFORE, STEP[2]))])

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("groups_in_opposite_order", (), (0, 1))
