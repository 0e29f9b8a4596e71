"""Two claims: who holds the others up is a fact, reported early; that it is for good needs grounds."""

from __future__ import annotations

import pytest

from diag.detectors.hang import wants_closer_look
from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder, Iteration, RecorderAsked
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started, steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, pid_of, stack, tree

_GROUP = CollectiveGroup("gloo", "0", "default_pg", (0, 1))
LOOP = (*TRAIN, "pack /app/collate.py:{}")


def recorded(story: Story, rank: int, seq: int, made: float = 0.0) -> None:
    call = CollectiveEntry(
        "gloo", "0", "default_pg", seq, seq, False, "all_reduce", ((4,),), ((4,),), ("float",), "scheduled", False, True,
        seq, made,
    )  # fmt: skip
    story.tell(FlightRecorder(rank, story.now, "2.10", ("gloo",), (_GROUP,), (call,), pid_of(rank)))


def loops(
    story: Story, seconds: int, *, waiting_cpu: float = 0.0, seq: int | None = None, chars: int = 0
) -> None:
    """Rank 1 runs Python all the while; rank 0 waits for it in one call (`seq`: as its recorder says)."""
    for second in range(seconds):
        if seq is not None and second % 30 == 5:
            recorded(story, 0, seq)
        story.tell(
            tree(0, story.now, cpu=waiting_cpu * second), stack(0, story.now, ALL_REDUCE),
            tree(1, story.now, cpu=story.now, chars=chars * second),
            stack(1, story.now, [frame.format(second % 7) for frame in LOOP]),
        )  # fmt: skip
        story.wait(1.0)


def test_rank_that_does_not_come_holds_the_others_up_at_first_and_hangs_after_five_minutes() -> None:
    story = steady()
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})
    early = story.the("held-up")
    story.still(270.0, {0: ALL_REDUCE, 1: SLEEP})
    late = story.hang()

    assert (early.severity.value, early.ranks, early.waiting_ranks, early.grounds) == (
        "warning",
        (1,),
        (0,),
        (),
    )
    assert "hang" not in early.summary and "hung" not in early.summary
    assert (late.severity.value, late.ranks, late.cause) == ("critical", (1,), early.cause)
    assert [ground.kind for ground in late.grounds] == ["overdue"]
    assert [one.id for one in story.findings()] == ["hang"]


def test_what_becomes_a_hang_is_not_over_in_between() -> None:
    story = steady()
    story.still(330.0, {0: ALL_REDUCE, 1: SLEEP})
    story.tell(Iteration(1, 11, 100, "iteration 11"))
    story.wait(2.0)

    changes = [(change.finding.id, change.kind.value, change.replaced) for change in story.engine.history()]
    assert changes == [
        ("held-up", "opened", False),
        ("hang", "opened", False),
        ("held-up", "resolved", True),
        ("hang", "resolved", False),
    ]
    assert [change.finding.id for change in story.engine.over()] == ["hang"]


def test_job_whose_pauses_are_long_is_given_twenty_of_them() -> None:
    story = started()
    for number in range(1, 6):
        story.still(60.0, {0: ALL_REDUCE, 1: ALL_REDUCE})
        story.tell(Iteration(1, number, 100, f"iteration {number}"))

    story.still(1100.0, {0: ALL_REDUCE, 1: SLEEP})
    before = story.hang().id
    story.still(200.0, {0: ALL_REDUCE, 1: SLEEP})

    assert (before, story.hang().id) == ("held-up", "hang")
    assert "1 min" in story.hang().grounds[0].fact


def blocked_for_good(story: Story, dead_end: str, read_after: int = 20) -> None:
    """Rank 1, for 40 s; read once."""
    wait = Wait(
        "pipe_read" if dead_end == "only_self" else "mutex", others=(Party(pid=1),), dead_end=dead_end
    )
    for second in range(40):
        if second == read_after:
            thread = ThreadWait(pid_of(1), "MainThread", "S", "pipe_read", wait, same=True)
            process = ProcessWaits(pid_of(1), 1, "python train.py", (thread,))
            story.tell(WaitsRead(1, pid_of(1), story.now, (process,)))
        story.still(1.0, {0: ALL_REDUCE, 1: SLEEP}, step=1.0)


@pytest.mark.parametrize("dead_end", ["only_self", "owner_ended", ""])
def test_wait_that_cannot_end_is_a_hang_at_once(dead_end: str) -> None:
    story = steady()
    blocked_for_good(story, dead_end)

    assert story.hang().id == ("hang" if dead_end else "held-up")
    assert [ground.kind for ground in story.hang().grounds] == (["dead_end"] if dead_end else [])


def test_rank_that_was_released_holds_nobody_up_until_it_has_had_the_time_of_any_other() -> None:
    """Seen live: a FIFO was opened, and the rank had yet to compile before it came to the others' call."""
    story = steady()
    blocked_for_good(story, "only_self")
    assert [ground.kind for ground in story.hang().grounds] == ["dead_end"]

    loops(story, 13)
    soon = story.findings()
    loops(story, 90)

    assert soon == []
    assert story.the("held-up").cause == "busy"


def test_hang_that_is_proven_while_its_rank_was_seen_to_move_after_the_others_stays_open() -> None:
    """Seen live, on a busy machine: the culprit's first stack came two seconds after the others had stopped."""
    story = steady()
    loops(story, 5)
    blocked_for_good(story, "only_self", read_after=3)

    changes = [(change.finding.id, change.kind.value) for change in story.engine.history()]
    assert [kind for name, kind in changes if name == "hang"] == ["opened"]


def test_endless_loop_is_held_up_with_the_line_and_its_cpu_and_a_hang_after_half_an_hour() -> None:
    story = steady()
    loops(story, 60)
    early = story.the("held-up")
    loops(story, 1800)

    assert (early.cause, early.ranks, early.waiting_ranks) == ("busy", (1,), (0,))
    assert "rank 1 has been busy in pack (/app/collate.py:" in early.summary and "100 % CPU" in early.summary
    assert (story.hang().id, story.hang().cause) == ("hang", "busy")


def test_recorder_without_a_new_call_shows_who_waits_though_its_thread_spins() -> None:
    story = steady()
    loops(story, 90, waiting_cpu=1.0, seq=10)

    assert (story.hang().id, story.hang().ranks) == ("held-up", (1,))


def test_rank_that_waits_at_one_line_while_calls_are_made_is_not_held_up() -> None:
    """Unbalanced steps and a silent log: rank 0 is found in all_reduce whenever one looks."""
    story = started()
    for number in range(20):
        loops(story, 30, waiting_cpu=1.0)
        recorded(story, 0, number, story.now)

    assert story.findings() == []


def test_rank_that_spins_without_a_recorder_proves_nothing() -> None:
    story = steady()
    loops(story, 300, waiting_cpu=1.0)

    assert story.findings() == []


def test_rank_that_makes_steps_between_takes_cpu_and_is_not_held_up() -> None:
    story = started()
    loops(story, 300, waiting_cpu=0.02)

    assert story.findings() == []


def test_rank_that_reads_its_data_while_the_others_wait_is_at_work_for_two_minutes() -> None:
    """Then it is a fact that it holds them up: the reading may be another thread's."""
    story = steady()
    loops(story, 110, chars=10 << 20)
    early = story.findings()
    loops(story, 20, chars=10 << 20)

    assert early == []
    assert story.the("held-up").ranks == (1,)


def test_hold_up_ends_with_the_next_step() -> None:
    story = steady()
    loops(story, 60)
    story.tell(Iteration(1, 11, 100, "iteration 11"))
    story.wait(2.0)

    assert story.findings() == []


def test_rank_that_retries_with_pauses_is_elsewhere_and_does_not_compute() -> None:
    story = steady()
    lines = ((*TRAIN, "request /app/fetch.py:12"), (*TRAIN, "pause /app/fetch.py:20"))
    for second in range(60):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now, cpu=0.01 * second), stack(1, story.now, lines[second // 5 % 2]))
        story.wait(1.0)

    held = story.the("held-up")
    assert (held.ranks, held.cause) == ((1,), "not_in_collective")
    assert "rank 1 has been in " in held.summary and "/app/fetch.py" in held.summary


def test_closer_looks_become_rarer_where_calls_are_made_and_end_where_no_recorder_answers() -> None:
    def closer_seconds(answers: bool) -> int:
        story, seen, number = started(), 0, 0
        for second in range(1200):
            closer = wants_closer_look(story.now, story.engine.job)
            seen += closer
            if closer and second % 30 == 0:
                number += 1
                story.tell(RecorderAsked(0))
                if answers:
                    recorded(story, 0, number, story.now)
            story.tell(tree(0, story.now, cpu=story.now), stack(0, story.now, ALL_REDUCE))
            story.tell(
                tree(1, story.now, cpu=story.now),
                stack(1, story.now, (*TRAIN, f"forward /app/a.py:{second % 9}")),
            )
            story.wait(1.0)
        return seen

    assert closer_seconds(answers=True) < 300
    assert closer_seconds(answers=False) < 60


def test_rank_in_a_call_that_no_table_names_waits_as_its_recorder_shows() -> None:
    """DDP's own broadcast of buffers, torch 2.13: a function of C below distributed.py."""
    story, call = steady(), (*TRAIN, "_distributed_broadcast_coalesced torch/nn/parallel/distributed.py:2363")
    for second in range(60):
        if second in (5, 35):
            recorded(story, 0, 11)
            story.tell(FlightRecorder(1, story.now, "2.10", ("gloo",), (_GROUP,), (), pid_of(1)))
        story.still(1.0, {0: call, 1: SLEEP}, step=1.0)

    held = story.the("held-up")
    assert (held.klass, held.ranks, held.waiting_ranks) == ("peer_not_joined", (1,), (0,))
