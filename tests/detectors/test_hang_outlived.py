"""All ranks have ended, and the command still waits for a process of its own; and where it may be at work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations.waits import Party, ProcessWaits, Spent, ThreadWait, Wait, WaitsRead
from tests.facts import Story, found

COMMAND, TAIL, OTHER = 999, 2001, 2002
SPENT = Spent(3.0, 5000, 900)
READS = Wait("other", "poll", 5, "anon_inode:inotify")
AGE = 300.0  # at the first reading, 10 s after the last rank


def process(pid: int, parent: int, command: str, wait: Wait, age: float = AGE) -> ProcessWaits:
    thread = ThreadWait(pid, command, "S", "", wait, same=True)
    return ProcessWaits(pid, parent, command, (thread,), age_seconds=age)


def waits_for(*pids: int) -> ProcessWaits:
    others = tuple(Party(pid, 0, "tail -F rank0.log") for pid in pids)
    return process(COMMAND, 1, "bash nightly.sh", Wait("child", "wait4", others=others))


def tail(wait: Wait = READS, age: float = AGE, pid: int = TAIL) -> ProcessWaits:
    return process(pid, COMMAND, "tail -F rank0.log", wait, age)


def story_of(
    *processes: ProcessWaits,
    seconds: int = 70,
    spends: Spent | None = SPENT,
    each: Spent = SPENT,
    ended: tuple[int, ...] = (0, 1),
    world: int = 2,
) -> Story:
    """`each`: of the second reading and those after it."""
    story = Story(world=world, nodes=1 if world == 2 else 2)
    for rank in ended:
        story.exit(rank, 0)
    story.wait(10)
    for number in range(seconds // 10 + 1):
        used = spends if number == 0 or spends is None else each
        if number > 1 and each != SPENT:
            used = replace(each, chars=each.chars + number * (each.chars - SPENT.chars))
        aged = (replace(one, age_seconds=(one.age_seconds or 0.0) + 10.0 * number) for one in processes)
        story.tell(WaitsRead(None, COMMAND, 0.5, tuple(aged), spent=used))
        story.wait(10)
    return story


def test_command_that_waits_for_its_own_tail_is_held_up_and_no_rank_is_blamed() -> None:
    held = story_of(waits_for(TAIL), tail()).hang()

    assert (held.id, held.klass, held.cause, held.severity.value) == (
        "held-up",
        "teardown",
        "command_outlives_ranks",
        "warning",
    )
    assert (held.ranks, held.waiting_ranks) == ((), ())
    assert held.summary == (
        "all 2 ranks have ended, and the command (pid 999) has waited without a move for 1 min 20 s: it waits for child pid "
        "2001 (`tail -F rank0.log`) to end, which is in poll of inotify (fd 5)"
    )
    assert "a bare `wait`" in held.advice
    assert [item.excerpt for item in held.evidence] == [
        "pid 999: the main thread waits for child pid 2001 (`tail -F rank0.log`) to end, which is in poll of inotify (fd 5)",
        "pid 2001 has run for 6 min 10 s, and the last rank ended 1 min 20 s ago",
    ]


def test_for_long_it_is_a_hang() -> None:
    hang = story_of(waits_for(TAIL), tail(), seconds=610).hang()

    assert (hang.id, [ground.kind for ground in hang.grounds]) == ("hang", ["overdue"])


def test_each_of_several_that_a_shell_waits_for_is_named() -> None:
    held = story_of(waits_for(TAIL, OTHER), tail(), tail(pid=OTHER)).hang()

    clauses = [f"it waits for child pid {pid} (`tail -F rank0.log`) to end" for pid in (TAIL, OTHER)]
    assert f"{clauses[0]}, which is in poll of inotify (fd 5), and {clauses[1]}, which" in held.summary


def test_pipe_that_somebody_else_keeps_open_leads_to_him() -> None:
    pipe = Wait("pipe_read", "read", 0, "pipe:[7]", others=(Party(OTHER, 0, "python sync.py"),))
    holder = replace(process(OTHER, 1, "python sync.py", READS), job=False)
    held = story_of(waits_for(TAIL), process(TAIL, COMMAND, "tee log", pipe), holder).hang()

    assert "reads from a pipe (standard input) that pid 2002 (`python sync.py`) may write to" in held.summary


SLEEPS = Wait("sleep", "clock_nanosleep", seconds=500.0, timed=True)


@pytest.mark.parametrize(
    "processes",
    [
        (waits_for(TAIL), tail(SLEEPS)),
        (waits_for(TAIL), tail(Wait("poll", "poll", seconds=30.0, timed=True))),
        (waits_for(TAIL), tail(Wait("terminal", "read", 0, "/dev/pts/0"))),
        (waits_for(TAIL), tail(Wait("file_io", "fsync", 3, "/ckpt/a.pt"))),
        (waits_for(TAIL), tail(Wait("tcp_receive", "recvfrom", 3, peer="10.0.0.5:443"), age=8.0)),
        (waits_for(TAIL, OTHER), tail(), tail(SLEEPS, pid=OTHER)),
        (process(COMMAND, 1, "python serve.py", Wait("tcp_accept", "accept", 3)),),
        (process(COMMAND, 1, "python serve.py", Wait("condition", "futex")),),
        (waits_for(),),
    ],
    ids=[
        "sleeps",
        "looks again",
        "asks",
        "writes",
        "began later",
        "one sleeps",
        "serves",
        "queue",
        "unknown",
    ],
)
def test_command_that_may_be_at_work_or_is_asked_for_work_is_left_alone(
    processes: tuple[ProcessWaits, ...],
) -> None:
    assert story_of(*processes, seconds=700).findings() == []


@pytest.mark.parametrize(
    ("spends", "each"),
    [
        (SPENT, replace(SPENT, chars=SPENT.chars + 4096)),
        (None, SPENT),
    ],
    ids=["uploads between", "may not be read"],
)
def test_command_that_reads_or_writes_now_and_then_is_left_alone(spends: Spent | None, each: Spent) -> None:
    assert story_of(waits_for(TAIL), tail(), seconds=300, spends=spends, each=each).findings() == []


@pytest.mark.parametrize("more", [Spent(3.0, 5000, 980), Spent(3.2, 5000, 900)], ids=["child", "computes"])
def test_time_counts_from_the_last_move(more: Spent) -> None:
    story = story_of(waits_for(TAIL), tail(), seconds=40)
    for _ in range(5):
        story.tell(WaitsRead(None, COMMAND, 0.5, (waits_for(TAIL), tail()), spent=more))
        story.wait(10)

    assert story.findings() == []


def test_rank_that_lives_or_was_never_seen_may_be_waited_for() -> None:
    assert story_of(waits_for(TAIL), tail(), seconds=700, ended=(0,)).findings() == []
    assert story_of(waits_for(TAIL), tail(), seconds=700, world=4).findings() == []


def test_ranks_that_are_started_again_end_it() -> None:
    story = story_of(waits_for(TAIL), tail())
    again = found(0)
    story.tell(replace(again, placement=replace(again.placement, pid=5000)))
    story.wait(2)

    assert story.findings() == []
