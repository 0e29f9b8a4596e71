"""A rank whose output moves is not hung, whatever its stack shows; one that repeats itself is, and so is one
behind a launcher that prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.model import ChangeKind, Finding
from diag.model.observations import Iteration, LogLine, RunStarted
from tests.facts import ALL_REDUCE, SLEEP, Story, stack, tree

MOVES = ("lines", "bar", "files", "download")
STANDS = {
    "silent": ("unknown", ()),
    "same": ("unknown", ()),
    "redrawn": ("unknown", ()),
    "heartbeat": ("unknown", ()),
    "chatter": ("peer_not_joined", (1,)),
}


def hangs(captures: Path, name: str) -> list[Finding]:
    _, changes, _ = replay([captures / "printing" / f"{name}.jsonl.gz"])
    return [
        change.finding
        for change in changes
        if change.finding.id in ("hang", "held-up") and change.kind is ChangeKind.OPENED
    ]


@pytest.mark.parametrize("name", MOVES)
def test_ranks_that_print_something_new_for_a_minute_are_not_hung(captures: Path, name: str) -> None:
    assert hangs(captures, name) == []


@pytest.mark.parametrize("name", STANDS)
def test_ranks_that_stopped_are_named_whatever_is_printed_beside_them(captures: Path, name: str) -> None:
    found = hangs(captures, name)

    assert [(hang.klass, hang.ranks) for hang in found] == [STANDS[name]]


# -- the rule
# ---------------------------------------------------------------------------------------------------------


Stacks = tuple[tuple[str, ...], tuple[str, ...]]


def play(lines: list[str], *, each: float = 3.0, rank: int | None = None, writes: bool | None = True, steps: bool = False,
         stacks: Stacks = (SLEEP, SLEEP), seconds: float = 90.0) -> Story:  # fmt: skip
    """Rank 0 prints the next of the lines, over again, to a pipe that both ranks share, each so many seconds;
    nothing else moves. `writes`: the kernel counts its bytes; False: they are the launcher's; None: it does
    not tell. `rank`: the line names it."""
    story = Story()
    if steps:
        story.tell(Iteration(1, 7, 1000, "iteration 7/1000"))
    written, number, began = 0, 0, story.now
    while story.now < began + seconds and not story.findings():
        if story.now >= began + number * each:
            text = lines[number % len(lines)].format(n=number)
            number += 1
            written += len(text) + 1 if writes else 0
            story.tell(LogLine(rank, "stdout", text))
        for one, place in enumerate(stacks):
            read = tree(one, story.now)
            count = None if writes is None else written if one == 0 else 0
            story.tell(
                replace(read, main=replace(read.main, write_chars=count)), stack(one, story.now, place)
            )
        story.wait(1.0)
    return story


@pytest.mark.parametrize(
    "lines",
    [
        ["rank 0 step {n}"],
        ["Downloading shards:  {n}%|#####     |"],
        ["tokenizing part-{n}.jsonl", "done"],
        ["epoch 1 batch {n}/100, 12.5 s", "epoch 1 loss 0.{n}"],
        ["2026-11-21 10:00:00,123 INFO waited 3.0 s for batch {n}"],
    ],
)
def test_text_that_changes_is_movement(lines: list[str]) -> None:
    assert play(lines).findings() == []


@pytest.mark.parametrize(
    "lines",
    [
        ["waiting for rank 1"],
        ["WARNING: no answer", "  of 10.0.0.3:29500"],
        ["2026-11-21 10:00:{n:02},123 INFO waiting"],
        [
            "[W1121 10:00:{n:02}.163027360 socket.cpp:752] [c10d] The client socket has failed to connect (attempt {n})"
        ],
        ["1763856{n:03}.25 waiting"],
        ["Train:  37%|###7      | 37/100 [00:{n:02}<01:00,  1.{n}it/s]"],
        ["Still waiting for the server, {n}.5 s elapsed", "elapsed: {n}"],
        ["Retrying (Retry(total={n}, connect=None)) after connection broken", "retry {n} of 100"],
        ["|", "/", "-", "\\"],
        [""],
    ],
)
def test_the_same_words_again_are_no_movement_whatever_clock_is_in_them(lines: list[str]) -> None:
    hang = play(lines).hang()

    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("unknown", (), (0, 1))


def test_lines_that_no_rank_has_written_move_none() -> None:
    assert play(["launcher: beat {n}"], writes=False).hang().waiting_ranks == (0, 1)


def test_lines_may_be_a_ranks_own_where_nobody_counts_what_it_writes() -> None:
    assert play(["rank 0 step {n}"], writes=None).findings() == []


def test_line_that_names_its_rank_is_that_ranks() -> None:
    assert play(["step {n}"], rank=0, writes=False).findings() == []


def test_rank_that_waits_in_a_collective_moves_nothing_by_what_its_threads_print() -> None:
    hang = play(["monitor: reading {n}"], stacks=(ALL_REDUCE, SLEEP)).hang()

    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("peer_not_joined", (1,), (0,))


def test_rank_that_prints_is_waited_for_by_those_in_a_collective() -> None:
    assert play(["shard {n}"], stacks=(SLEEP, ALL_REDUCE)).findings() == []


def test_lines_beside_the_steps_of_a_training_buy_its_hang_ten_minutes_and_no_more() -> None:
    assert play(["reading {n}"], steps=True, seconds=590.0).findings() == []
    assert play(["reading {n}"], steps=True, seconds=700.0).hang().waiting_ranks == (0, 1)


def test_hang_that_was_told_stays_told_while_its_rank_prints_a_line_or_two() -> None:
    # given
    story = play(["waiting"])
    began = story.hang().since

    # when
    for text in ("a thread says this", "and that"):
        story.tell(LogLine(0, "stderr", text))
        story.still(4.0, {0: SLEEP, 1: SLEEP})

    # then
    assert story.hang().since == began


def test_hang_that_was_told_is_over_when_its_rank_goes_on_printing() -> None:
    story = play(["waiting"])

    for number in range(50):
        story.tell(LogLine(0, "stdout", f"step {number}"))
        story.still(2.0, {0: SLEEP, 1: SLEEP})

    assert story.findings() == []


def test_bar_of_a_slow_rank_moves_it_though_a_fast_one_has_shown_the_same() -> None:
    """Both print the same bar to one pipe; rank 0 is through after 100 s and waits for rank 1, which needs
    200 s."""
    story = Story()
    written = {0: 0, 1: 0}
    for second in range(200):
        for rank, speed in ((0, 10), (1, 20)):
            if second % speed == 0 and second // speed < 10:
                text = f"Loading checkpoint shards:  {second // speed * 10}%"
                written[rank] += len(text) + 1
                story.tell(LogLine(None, "stderr", text, bar=True))
        for rank in range(2):
            read = tree(rank, story.now)
            place = ALL_REDUCE if rank == 0 and second > 100 else SLEEP
            story.tell(
                replace(read, main=replace(read.main, write_chars=written[rank])),
                stack(rank, story.now, place),
            )
        story.wait(1.0)
        assert story.findings() == []


def test_output_that_nobody_shows_diag_counts_by_its_bytes_for_ten_minutes() -> None:
    """As after `watch` of a job that prints to a terminal."""
    story = Story()
    story.tell(RunStarted(None, ("torchrun", "train.py"), 999, "node-0", 2, attached=True))

    assert 600 <= seconds_until_found(story) < 660


def test_bytes_that_a_rank_writes_are_no_output_where_diag_shows_all_of_it() -> None:
    """A rank that asks a manager's queue, or a service, again and again writes for as long as it hangs."""
    assert seconds_until_found(Story()) < 60


def seconds_until_found(story: Story) -> float:
    began = story.now
    while not story.findings() and story.now - began < 900:
        for rank in range(2):
            read = tree(rank, story.now)
            story.tell(
                replace(read, main=replace(read.main, write_chars=int(story.now))),
                stack(rank, story.now, SLEEP),
            )
        story.wait(2.0)
    return story.now - began
