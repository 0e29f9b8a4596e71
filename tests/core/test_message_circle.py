"""Who miscounted in a pipeline: every fault of every stage, played out with sends that return when their peer receives."""

from __future__ import annotations

import pytest

from diag.model.observations import Exchange
from diag.state.message_circle import find_circle

MICRO = 4
SEND, RECV = True, False


def program(stage: int, stages: int, forward: int = MICRO, backward: int = MICRO) -> list[Exchange]:
    """One step of GPipe: activations go up, then gradients come down."""
    below, above = stage - 1, stage + 1
    calls: list[Exchange] = []
    for _ in range(forward):
        calls += [Exchange(RECV, below)] if stage else []
        calls += [Exchange(SEND, above)] if above < stages else []
    for _ in range(backward):
        calls += [Exchange(RECV, above)] if above < stages else []
        calls += [Exchange(SEND, below)] if stage else []
    return calls


def play(programs: list[list[Exchange]]) -> dict[int, Exchange]:
    """In which call each rank is blocked in the end; those that are through are left out."""
    at = [0] * len(programs)

    def call(rank: int) -> Exchange | None:
        return programs[rank][at[rank]] if at[rank] < len(programs[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            mine = call(rank)
            other = call(mine.peer) if mine is not None else None
            if mine is not None and other == Exchange(not mine.sends, rank, mine.tag):
                at[rank] += 1
                at[mine.peer] += 1
                moved = True
    return {rank: one for rank in range(len(programs)) if (one := call(rank)) is not None}


def blocked(stages: int, wrong: int, forward: int, backward: int) -> dict[int, Exchange]:
    """The second of three steps goes wrong on one stage."""
    programs = []
    for stage in range(stages):
        good = program(stage, stages)
        bad = program(stage, stages, forward, backward) if stage == wrong else good
        programs.append([*good, *bad, *good])
    return play(programs)


@pytest.mark.parametrize("stages", range(3, 9))
@pytest.mark.parametrize(
    ("forward", "backward"),
    [(MICRO - 1, MICRO - 1), (MICRO - 1, MICRO), (MICRO + 1, MICRO), (MICRO, MICRO - 1)],
    ids=["fewer", "fewer-forward", "more-forward", "fewer-backward"],
)
def test_stage_that_miscounts_is_to_blame(stages: int, forward: int, backward: int) -> None:
    for wrong in range(stages):
        circle = find_circle(blocked(stages, wrong, forward, backward))
        assert circle is not None
        assert circle.turned == (wrong,), (wrong, circle)
