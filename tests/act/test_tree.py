"""CMD's tree, found by what the kernel says of each process, and ended as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from diag.launch import tree
from diag.launch.tree import Process, below, end_tree, members

CARRIER, HUB, WITNESS, CMD = 10, 20, 30, 40

HUNDREDS = int(os.environ.get("TREES", "1"))  # TREES=10 make test-hardening: a thousand, a quarter of an hour


def row(pid: int, parent: int, *, group: int = 5, session: int = 5, state: str = "S") -> Process:
    return Process(pid, pid * 100, parent, group, session, state, f"p{pid}")


def table(*rows: Process) -> Mapping[int, Process]:
    """A shell (5) with the carrier, its hub with a sidecar and a notifier, its witness, CMD; and others."""
    fixed = (
        row(1, 0, group=1, session=1), row(5, 1), row(6, 5, group=6), row(CARRIER, 5), row(WITNESS, CARRIER),
        row(HUB, CARRIER, group=HUB, session=HUB), row(21, HUB, group=HUB, session=HUB),
        row(22, HUB, group=22, session=22), row(CMD, CARRIER),
    )  # fmt: skip
    return {one.pid: one for one in (*fixed, *rows)}


def found(*rows: Process, carrier: int = CARRIER, marked: tuple[int, ...] = ()) -> list[int]:
    spared = [(HUB, HUB * 100), (WITNESS, WITNESS * 100)]
    seen = members(table(*rows), carrier, spared=spared, is_marked=lambda pid: pid in marked)
    return [one.pid for one in seen]


def test_tree_is_cmd_and_all_below_it_and_nothing_of_diag() -> None:
    assert found(row(41, CMD), row(42, 41)) == [CMD, 41, 42]


def test_a_daemon_that_the_subreaper_got_is_of_the_tree() -> None:
    assert found(row(41, CARRIER, group=41, session=41)) == [CMD, 41]


def test_an_orphan_in_a_session_of_the_tree_is_of_it_where_there_is_no_subreaper() -> None:
    led = row(41, CMD, group=41, session=41)
    assert found(led, row(42, 1, group=42, session=41), row(43, 1, group=43, session=43)) == [CMD, 41, 42]


def test_other_jobs_of_the_shell_are_not_of_the_tree() -> None:
    """A process of CMD that joined their group included: the group is led by another."""
    assert found(row(7, 6, group=6), row(41, CMD, group=6)) == [CMD, 41]


def test_a_process_that_has_ended_is_not_of_the_tree() -> None:
    assert found(row(41, CMD, state="Z")) == [CMD]


def test_a_notifier_of_an_earlier_hub_is_spared_by_its_pid_and_start() -> None:
    rows = table(row(50, CARRIER, group=50, session=50), row(51, 50))
    spared = [(HUB, HUB * 100), (WITNESS, WITNESS * 100), (50, 5000)]

    assert [one.pid for one in members(rows, CARRIER, spared=spared, is_marked=lambda pid: False)] == [CMD]


def test_pid_of_what_was_spared_may_be_anothers_by_now() -> None:
    rows = table(row(50, CMD))

    seen = members(
        rows,
        CARRIER,
        spared=[(50, 1), (HUB, HUB * 100), (WITNESS, WITNESS * 100)],
        is_marked=lambda pid: False,
    )
    assert [one.pid for one in seen] == [CMD, 50]


def test_first_process_of_a_container_takes_only_marked_orphans() -> None:
    """What somebody left behind in `kubectl exec` comes to it as well."""
    rows = {
        one.pid: one
        for one in (
            row(1, 0, group=1, session=1),
            row(CMD, 1, group=1, session=1),
            row(50, 1, group=50, session=50),
            row(60, 1, group=60, session=60),
        )
    }
    marked = {CMD, 60}

    seen = members(rows, 1, spared=(), is_marked=marked.__contains__)
    assert [one.pid for one in seen] == [CMD, 60]


def test_below_ends_at_a_circle() -> None:
    """Rows of /proc are read one after the other: what was read may never have been at once."""
    rows = {2: row(2, 3), 3: row(3, 2)}

    assert below(rows, [2]) == {2, 3}


def test_nothing_is_sent_where_one_process_may_not_be_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing: of a command run by sudo half would be left."""
    sent: list[tuple[int, int]] = []

    def send(process: Process, number: int) -> bool:
        sent.append((process.pid, number))
        return process.pid != 42

    monkeypatch.setattr(tree, "send", send)

    ending = end_tree(lambda: [row(41, CMD), row(42, 41)], 0.0)

    assert [one.pid for one in ending.refused] == [42] and not ending.whole
    assert {number for _, number in sent} == {0}


def test_what_cannot_be_ended_is_told_and_not_waited_for() -> None:
    """As a process in an uninterruptible call is: it stays whatever is sent."""
    stuck = Process(2**22 + 1, 1, 1, 1, 1, "D", "stuck")  # no pid is so high: nothing gets a signal
    now = iter(range(1000))

    ending = end_tree(lambda: [stuck], 2.0, clock=lambda: float(next(now)), pause=lambda seconds: None)

    assert ending.left == [stuck] and not ending.whole


def ended(first: int, count: int) -> list[dict[str, object]]:
    words = [sys.executable, "-m", "tests.act.trees", "--end", str(first), str(count), "0.1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(rows: list[dict[str, object]], count: int) -> None:
    assert len(rows) == count
    for one in rows:
        assert one["whole"] and one["left"] == [], one


def test_no_stubborn_tree_leaves_a_process() -> None:
    """Deaf ones, sessions and groups of their own, daemons, stopped ones, one that forks all the time."""
    check(ended(1, 15), 15)


@pytest.mark.hardening
@pytest.mark.parametrize("first", range(1000, 1000 + 100 * HUNDREDS, 100))
def test_none_of_the_stubborn_trees_of_a_longer_run_leaves_a_process(first: int) -> None:
    check(ended(first, 100), 100)
