"""Who miscounted in a pipeline: every fault of every stage, played out with sends that return when their peer receives."""

from __future__ import annotations

from dataclasses import replace

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


def test_two_stages_alone_do_not_tell_who_miscounted() -> None:
    circle = find_circle(blocked(2, 1, MICRO - 1, MICRO - 1))
    assert circle is not None and circle.turned == (0, 1)


def test_those_behind_tell_nothing_where_sends_do_not_wait() -> None:
    waits = {rank: replace(one, queues=True) for rank, one in blocked(4, 1, MICRO - 1, MICRO - 1).items()}
    circle = find_circle(waits)
    assert circle is not None and circle.turned == circle.ranks == (1, 2)


def test_two_that_both_send_first_while_others_send_to_them_are_all_named() -> None:
    # one forward, one backward, with plain sends: the last two stages send to each other in the very first step
    waits = {0: Exchange(SEND, 1), 1: Exchange(SEND, 2), 2: Exchange(SEND, 1)}
    circle = find_circle(waits)
    assert circle is not None and (circle.turned, circle.behind) == ((1, 2), (0,))


def test_ring_in_which_all_receive_first_names_all() -> None:
    circle = find_circle({rank: Exchange(RECV, (rank - 1) % 3) for rank in range(3)})
    assert circle is not None and (circle.turned, circle.ranks) == ((0, 1, 2), (0, 2, 1))


def test_messages_of_different_tags_do_not_meet() -> None:
    circle = find_circle({0: Exchange(SEND, 1, 5), 1: Exchange(RECV, 0, 6)})
    assert circle is not None and circle.turned == (0, 1)


@pytest.mark.parametrize(
    "waits",
    [
        {},
        {0: Exchange(SEND, 1), 1: Exchange(RECV, 0)},
        {0: Exchange(SEND, 1), 1: Exchange(SEND, 2)},  # rank 2 computes
        {0: Exchange(RECV, 1), 1: Exchange(RECV, 2), 2: Exchange(SEND, 1)},
        {0: Exchange(RECV, 0)},
    ],
    ids=["nobody", "met", "chain", "chain that is met", "itself"],
)
def test_no_circle(waits: dict[int, Exchange]) -> None:
    assert find_circle(waits) is None
