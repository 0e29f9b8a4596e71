"""Ranks that wait for each other's sends and receives, as their stacks and the kernel's count of their switches show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from diag.model.observations import Block, Exchange, ProgramPlace, ProgramRead
from tests.detectors.test_hang import steady
from tests.facts import TRAIN, Story, pid_of, stack, tree

SEND = (*TRAIN, "send torch/distributed/distributed_c10d.py:2753")
RECV = (*TRAIN, "recv torch/distributed/distributed_c10d.py:2799")
# The middle one of three stages has left its forward pass a message early.
EARLY = {0: Exchange(True, 1), 1: Exchange(False, 2), 2: Exchange(False, 1)}


def waiting(
    calls: Mapping[int, Exchange],
    seconds: float = 60.0,
    *,
    wakes: tuple[int, ...] = (),
    story: Story | None = None,
) -> Story:
    """`wakes`: ranks that are in another call of the same kind at each reading. `story`: one that goes on."""
    story = story or steady(len(calls))
    end, switches = story.now + seconds, 0
    while story.now < end:
        switches += 1
        for rank, call in calls.items():
            seen = replace(tree(rank, story.now), switches=100 + (switches if rank in wakes else 0))
            sample = stack(rank, story.now, SEND if call.sends else RECV)
            main = replace(sample.threads[0], exchange=call)
            story.tell(seen, replace(sample, threads=(main,)))
        story.wait(2.0)
    return story


def test_stage_that_left_its_forward_pass_early_is_named_with_the_circle() -> None:
    hang = waiting(EARLY).the("hang")

    assert (hang.klass, hang.cause, hang.ranks) == ("collective_mismatch", "messages_do_not_match", (1,))
    assert hang.waiting_ranks == (0, 2) and hang.confidence.value == "medium"
    assert (
        "rank 1 has gone on to a send or receive that its peers have not entered: rank 1 waits to receive from rank 2, "
        "which waits to receive from rank 1; rank 0 waits to send to rank 1, for"
    ) in hang.summary
    assert "in a circle" in hang.grounds[0].fact


@pytest.mark.parametrize(
    ("sends", "words"), [(False, "receives before it sends"), (True, "sends before it receives")]
)
def test_two_that_both_begin_with_the_same_are_alike(sends: bool, words: str) -> None:
    hang = waiting({0: Exchange(sends, 1), 1: Exchange(sends, 0)}).the("hang")

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("messages_do_not_match", (), (0, 1))
    assert f"Each of ranks 0-1 {words}" in hang.advice and "batch_isend_irecv" in hang.advice
    call = "send to" if sends else "receive from"
    assert (
        f"ranks 0-1 have waited for each other's messages: rank 0 waits to {call} rank 1, which"
        in hang.summary
    )
    assert hang.confidence.value == "high"


@pytest.mark.parametrize(("under", "alike"), [("if", True), ("for", False)])
def test_two_that_one_branch_lets_send_first_are_alike_whoever_waits_for_them(
    under: str, alike: bool
) -> None:
    calls = {0: Exchange(True, 2), 1: Exchange(False, 2), 2: Exchange(True, 0)}
    story = waiting(calls, 1.0)
    text = "if rank % 2 == 0:" if alike else "for one in parts:"
    for rank in calls:
        place = ProgramPlace(
            "/app/train.py", 200, "train", "dist.send(out, peer)", (Block(199, 201, under, text),), ()
        )
        story.tell(ProgramRead(rank, pid_of(rank), (place,)))

    hang = waiting(calls, story=story).the("hang")

    assert hang.ranks == ((0, 2) if alike else (0,))


@pytest.mark.parametrize("wakes", [(1,), (0, 1, 2)], ids=["one wakes", "all wake"])
def test_equal_stacks_of_ranks_that_wake_in_between_are_no_circle(wakes: tuple[int, ...]) -> None:
    hang = waiting(EARLY, wakes=wakes).hang()

    assert (hang.id, hang.cause) == ("held-up", "all_ranks_wait")


def test_circle_goes_on_while_a_signal_wakes_its_ranks_in_the_same_call() -> None:
    story = waiting(EARLY)
    for rank, call in EARLY.items():
        sample = stack(rank, story.now, SEND if call.sends else RECV)
        main = replace(sample.threads[0], exchange=call)
        story.tell(replace(tree(rank, story.now), switches=500), replace(sample, threads=(main,)))
    story.wait(1.0)

    assert story.the("hang").cause == "messages_do_not_match"


def test_chain_of_waits_that_ends_outside_is_no_circle() -> None:
    calls = {0: Exchange(True, 1), 1: Exchange(True, 2), 2: Exchange(True, 3)}

    assert waiting(calls).hang().cause == "all_ranks_wait"
