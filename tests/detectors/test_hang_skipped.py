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
from tests.detectors.test_hang_variables import held
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


ROUNDS = """
def score(docs):
    if not docs:
        return None
    all_reduce(docs)  # scores


def train(loader, rank):
    for step in range(100):
        loss.backward()  # backward
        if step % 30 == 0:
            score(held_out[rank::2])  # evaluates
        if extra:
            all_reduce(docs)  # extra


train([], 0)  # top
"""
STEPS = (("0", "all_reduce", 900), ("0", "all_reduce", 40)) * 8


def in_rounds(
    path: Path, marks: Sequence[str], values: Sequence[dict[str, str]], calls_before: int = 1
) -> Finding:
    """Ranks that are in gradients' calls or those of another group, with the variables of `train`."""
    path.write_text(ROUNDS)
    stacks = {}
    for rank, mark in enumerate(marks):
        stacks[rank] = [f"<module> {path}:{line_of(ROUNDS, 'top')}", f"train {path}:{line_of(ROUNDS, mark)}"]
        stacks[rank] += [f"score {path}:{line_of(ROUNDS, 'scores')}"] if mark == "evaluates" else []
        stacks[rank].append(BACKWARD if mark == "backward" else REDUCE)
    story = steady(world=len(marks))
    for _ in range(3):
        story.still(20.0, stacks)
        for rank, mark in enumerate(marks):
            read(story, path, rank, stacks[rank])
            held(story, rank, stacks[rank], {"train": values[rank]})
            last = ("0", "all_reduce", 900) if mark == "backward" else ("1", "all_reduce", 2)
            calls = ((("1", "all_reduce", 2),) * calls_before, STEPS, (last,))
            story.tell(replace(dump_of(rank, [*sum(calls, ())]), emitted=story.now, pid=pid_of(rank)))
    story.still(20.0, stacks)
    return story.the("hang")


BEHIND, AHEAD = {"step": "30", "extra": "True"}, {"step": "31", "extra": "True"}


@pytest.mark.parametrize("world", [2, 3])
def test_rank_that_is_a_round_further_has_left_out_what_the_others_are_in(path: Path, world: int) -> None:
    """What it waits in comes next on them as well, in a round to come."""
    marks = ["evaluates", "backward", "evaluates"][:world]
    hang = in_rounds(path, marks, [BEHIND, AHEAD, BEHIND])

    assert (hang.klass, hang.cause, hang.ranks) == ("collective_mismatch", "call_skipped", (1,))
    assert hang.waiting_ranks == tuple(rank for rank in range(world) if rank != 1)
    assert "rank 1 has skipped all_reduce 2 of " in hang.summary
    assert "what leads past that call: `if not docs:`" in hang.summary
    assert "where docs is given at `score(held_out[rank::2])` (" in hang.summary
    assert "in an earlier round of the loop that all are in: see the condition" in hang.advice


@pytest.mark.parametrize(
    ("marks", "there", "before"),
    [
        (("evaluates", "backward"), BEHIND, 1),  # in the same round
        (("evaluates", "backward"), {}, 1),  # not known
        (("evaluates", "backward", "backward"), AHEAD, 1),  # most are further: theirs may be the way to go
        (("evaluates", "backward"), AHEAD, 0),  # a call never made before
        (("extra", "backward"), AHEAD, 1),  # nothing is seen that leads past it
        (("extra", "backward"), {"step": "31", "extra": "False"}, 1),  # it may be one too many
    ],
)
def test_rank_that_is_not_shown_to_have_come_by_a_call_is_not_said_to_be_a_round_further(
    path: Path, marks: tuple[str, ...], there: dict[str, str], before: int
) -> None:
    hang = in_rounds(path, marks, [BEHIND, there, there], before)

    assert "earlier round" not in hang.advice
    assert hang.ranks != (1,)
