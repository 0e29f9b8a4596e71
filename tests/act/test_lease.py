"""The lease on a shared folder: one holder whatever clocks, kills and pauses do, numbers that only grow, words that are
whole."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.agent.act.lease import FRESH_SECONDS, TTL_SECONDS, FileLease

ROOT_TOKEN = "a token of the job"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def nodes(folder: Path, *names: str) -> tuple[Clock, list[FileLease]]:
    clock = Clock()
    made = [FileLease.of(folder, ROOT_TOKEN, name) for name in names]
    for one in made:
        one.clock = clock
    return clock, made


def stamped(lease: FileLease, number: int, at: float) -> None:
    """As the file server does, whose clock is its own."""
    os.utime(lease.folder / f"lease-{number}", (at, at))


def test_one_of_two_has_it_and_keeps_it(tmp_path: Path) -> None:
    clock, (one, other) = nodes(tmp_path, "one", "other")
    assert (one.hold(), other.hold()) == (1, 0)
    for _ in range(20):
        clock.now += 5.0
        assert (one.hold(), other.hold()) == (1, 0)
    assert one.holds(1) and not other.holds(1)


def test_who_was_killed_is_replaced_under_the_next_number(tmp_path: Path) -> None:
    clock, (one, other) = nodes(tmp_path, "one", "other")
    one.hold()
    other.hold()
    clock.now += TTL_SECONDS - 1
    assert other.hold() == 0
    clock.now += 1
    assert other.hold() == 2
    assert not one.holds(1) and one.number() == 2

    # and what the first one had in mind under its number is void
    assert one.order(1, {"rule": "hang=end"}) and other.ordered(2) == (None, "")


def test_who_was_away_does_not_believe_in_its_lease_before_another_may_take_it(tmp_path: Path) -> None:
    clock, (one, other) = nodes(tmp_path, "one", "other")
    number = one.hold()
    other.hold()
    clock.now += TTL_SECONDS / 2
    assert not one.holds(number) and other.hold() == 0
    assert one.hold() == 2  # a new number, by the same atomic step that the other would take


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_clock_of_the_file_server_that_jumps_ends_no_lease_and_keeps_none(
    tmp_path: Path, jump: float
) -> None:
    clock, (one, other) = nodes(tmp_path, "one", "other")
    one.hold()
    stamped(one, 1, 1e9)
    other.hold()
    stamped(one, 1, 1e9 + jump)
    clock.now += 6.0
    assert other.hold() == 0
    clock.now += TTL_SECONDS
    assert other.hold() == 2


def _claims(folder: str, name: str, start: object, got: object) -> None:
    lease = FileLease.of(Path(folder), ROOT_TOKEN, name)
    start.wait()  # type: ignore[attr-defined]
    got.put((name, lease.hold(), lease.order(1, {"by": name})))  # type: ignore[attr-defined]


def test_of_many_that_begin_at_once_one_has_it_and_one_order_stands(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, got = spawn.Barrier(4), spawn.Queue()
    many = [spawn.Process(target=_claims, args=(str(tmp_path), f"n{i}", start, got)) for i in range(4)]
    for one in many:
        one.start()
    answers = [got.get(timeout=60) for _ in many]
    for one in many:
        one.join(30)
    assert sorted(number for _, number, _ in answers) == [0, 0, 0, 1]
    assert sum(ordered for _, _, ordered in answers) == 1
    assert list(FileLease.of(tmp_path, ROOT_TOKEN, "x").folder.glob(".*")) == []


def test_order_and_outcome_are_said_once(tmp_path: Path) -> None:
    _, (one, other) = nodes(tmp_path, "one", "other")
    number = one.hold()
    assert one.order(number, {"rule": "hang=end"}) and not other.order(number, {"rule": "hang=restart"})
    assert one.conclude(number, "go") and not other.conclude(number, "void")
    assert other.ordered(number) == ({"rule": "hang=end"}, "go")


def test_node_is_there_once_its_word_was_seen_to_change_and_as_long_as_it_does(tmp_path: Path) -> None:
    clock, (one, other) = nodes(tmp_path, "one", "other")
    one.say({"host": "gpu-1"})
    assert other.words() == {}  # it may be of a node that ended long ago
    clock.now += 5.0
    one.say({"host": "gpu-1", "ready": 3})
    assert other.words() == {"one": {"host": "gpu-1", "ready": 3}}
    clock.now += FRESH_SECONDS
    assert other.words() == {}


def test_word_goes_with_the_node(tmp_path: Path) -> None:
    _, (one,) = nodes(tmp_path, "one")
    one.say({"host": "gpu-1"})
    one.close()
    assert list(one.folder.iterdir()) == []


def test_jobs_of_other_tokens_have_other_leases(tmp_path: Path) -> None:
    one, other = FileLease.of(tmp_path, "a", "one"), FileLease.of(tmp_path, "b", "other")
    assert (one.hold(), other.hold()) == (1, 1) and one.folder != other.folder
    assert one.folder.stat().st_mode & 0o77 == one.folder.parent.stat().st_mode & 0o77 == 0


def test_half_a_file_is_none(tmp_path: Path) -> None:
    clock, (one, other) = nodes(tmp_path, "one", "other")
    number = one.hold()
    (one.folder / f"order-{number}").write_text('{"rule": "hang=e')
    assert other.ordered(number) == (None, "")
    (one.folder / "node-one.json").write_text("[" * 100_000)
    other.words()
    clock.now += 1.0
    (one.folder / "node-one.json").write_text("[]")
    assert other.words() == {}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EIO])
def test_link_whose_answer_was_lost_is_told_by_the_number_of_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """EPERM without a link: a file system that has none."""
    _, (one, other) = nodes(tmp_path, "one", "other")
    real = os.link

    def lost(source: Path, target: Path) -> None:
        if code == errno.EIO:
            real(source, target)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", lost)
    assert (one.hold(), other.hold()) == (1, 0)


def test_folder_does_not_grow_with_the_numbers(tmp_path: Path) -> None:
    _, (one,) = nodes(tmp_path, "one")
    for number in range(1, 60):
        one._mine = (0, 0.0)
        assert one.hold() == number
        one.order(number, {})
    assert one.number() == 59 and len(list(one.folder.iterdir())) < 45


def test_folder_that_is_gone_or_another_s_is_an_error_and_no_lease(tmp_path: Path) -> None:
    _, (one,) = nodes(tmp_path, "one")
    one.folder.rmdir()
    for call in (one.hold, one.words, one.number, lambda: one.say({})):
        with pytest.raises(OSError):
            call()


# A holder that says what it has, keeps it once a second, and answers each line with what it would still dare to do.
HOLDER = """
import pathlib, select, sys
from diag.agent.act.lease import FileLease
lease = FileLease.of(pathlib.Path(sys.argv[1]), sys.argv[2], "holder")
number = lease.hold()
lease.order(number, {"rule": "hang=end"})
print(number, flush=True)
while not select.select([sys.stdin], [], [], 1.0)[0]:
    lease.hold()
sys.stdin.readline()
print(lease.holds(number) and lease.conclude(number, "go"), flush=True)
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_process_that_is_killed_or_stopped_loses_it_and_says_no_go_afterwards(
    tmp_path: Path, by: signal.Signals
) -> None:
    """By the real clock."""
    other = FileLease.of(tmp_path, ROOT_TOKEN, "other")
    command = [sys.executable, "-c", HOLDER, str(tmp_path), ROOT_TOKEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        until = time.monotonic() + TTL_SECONDS / 4
        while time.monotonic() < until:
            assert other.hold() == 0  # it lives
            time.sleep(0.2)

        holder.send_signal(by)
        began = time.monotonic()
        while not other.hold():
            assert time.monotonic() - began < 3 * TTL_SECONDS
            time.sleep(0.2)
        assert other.number() == 2 and time.monotonic() - began > TTL_SECONDS / 2

        if by == signal.SIGSTOP:
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write("now\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "False\n"
        assert other.ordered(1) == ({"rule": "hang=end"}, "")
        holder.kill()
