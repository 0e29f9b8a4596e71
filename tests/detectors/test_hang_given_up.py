"""A child that cannot go on holds its rank up for as long as that waits for it: with a time limit, no longer than that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, TRAIN, Story, pid_of, process, stack, tree

# CPython 3.11 in `subprocess.run(..., timeout=10)`, without and with capture_output; and without a limit.
RUN = (
    *TRAIN, "passes /app/sandbox.py:8", "run python3.11/subprocess.py:550", "communicate python3.11/subprocess.py:1209"
)  # fmt: skip
SLEEPS = (
    *RUN, "_communicate python3.11/subprocess.py:2141", "wait python3.11/subprocess.py:1264",
    "_wait python3.11/subprocess.py:2047",
)  # fmt: skip
READS = (*RUN, "_communicate python3.11/subprocess.py:2115", "select python3.11/selectors.py:415")
ENDLESS = (*RUN[:-1], "wait python3.11/subprocess.py:1264", "_wait python3.11/subprocess.py:2053")
JOINS = (
    *TRAIN, "join python3.11/multiprocessing/process.py:149", "wait python3.11/multiprocessing/popen_fork.py:40",
    "wait python3.11/multiprocessing/connection.py:947", "select python3.11/selectors.py:415",
)  # fmt: skip
EVENT = (
    "<module> <string>:6",
    "rev <string>:4",
    "wait python3.11/threading.py:655",
    "wait python3.11/threading.py:355",
)
ALONE = Wait("condition", "futex", of_python=True, dead_end="alone")
LIFE = 10


def held_by_children(
    lines: tuple[str, ...], own: Wait, wait: Wait = ALONE, *, life: int, seconds: int = 60
) -> Finding | None:
    """The worst that is found. Rank 0 waits in all_reduce, rank 1 for a child that ends, or is ended, after `life` seconds,
    and for another one then."""
    story = steady()
    found: list[Finding] = []
    for second in range(0, seconds, 2):
        _tell(story, (5001 + second // life, float(second % life)), lines, own, wait)
        story.wait(2.0)
        found += [one for one in story.findings() if one.id in ("hang", "held-up")]
    return max(found, key=lambda one: one.id == "hang", default=None)


def _tell(story: Story, child: tuple[int, float], lines: tuple[str, ...], own: Wait, wait: Wait) -> None:
    pid, age = child
    story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
    wchan = {"sleep": "hrtimer_nanosleep", "child": "do_wait"}.get(own.kind, "do_poll")
    below = process(pid, ppid=pid_of(1), wchan="futex_do_wait")
    story.tell(tree(1, story.now, below, wchan=wchan), stack(1, story.now, lines))
    story.tell(stack(1, story.now, EVENT, pid=pid))
    own = replace(own, others=(Party(pid),)) if own.kind != "sleep" else own
    main = ThreadWait(pid_of(1), "python", "S", "", own, cpu_ratio=0.0, same=own.kind != "sleep")
    of_child = ThreadWait(pid, "python", "S", "", wait, cpu_ratio=0.0, same=True)
    story.tell(
        WaitsRead(1, pid_of(1), 0.5, (
            ProcessWaits(pid_of(1), 1, "python train.py", (main,)),
            ProcessWaits(pid, pid_of(1), "python -I -c", (of_child,), forked=wait.forked, age_seconds=age),
        ))
    )  # fmt: skip


SLEEP = Wait("sleep", "clock_nanosleep", seconds=0.05, timed=True)
POLL = Wait("poll", "poll", seconds=10.0, timed=True)


@pytest.mark.parametrize(("lines", "own"), [(SLEEPS, SLEEP), (READS, POLL)], ids=["polled", "output read"])
def test_programs_that_are_ended_after_a_time_limit_are_no_hang(lines: tuple[str, ...], own: Wait) -> None:
    found = held_by_children(lines, own, life=LIFE)

    assert found is None or (found.id, found.severity.value) == ("held-up", "warning")


def test_program_in_a_lock_that_is_waited_for_without_a_limit_is_a_hang() -> None:
    found = held_by_children(ENDLESS, Wait("child", "wait4"), life=1000)

    assert found is not None
    assert (found.id, found.severity.value, found.cause) == ("hang", "critical", "lock_of_a_lone_thread")
    assert found.ranks == (1,) and "forked" not in found.advice


def test_fork_in_a_lock_for_which_its_rank_asks_again_and_again_is_a_hang() -> None:
    asks = replace(POLL, seconds=5.0)
    found = held_by_children(JOINS, asks, replace(ALONE, forked=True), life=1000)

    assert found is not None
    assert (found.id, found.severity.value, found.ranks) == ("hang", "critical", (1,))


def test_fork_in_a_lock_is_no_hang_before_the_limit_of_its_join_has_passed() -> None:
    asks = replace(POLL, seconds=120.0)
    found = held_by_children(JOINS, asks, replace(ALONE, forked=True), life=1000)

    assert found is not None
    assert (found.id, found.severity.value) == ("held-up", "warning")
