"""Native frames of a hang, twenty times over: the pause of a rank that spins in C, and of one that sleeps, disturbs neither
the verdict of the diag that pauses it nor that of a second one beside it."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Change, ChangeKind, Placement, Record
from diag.model.observations import RankFound, RunStarted
from diag.sources.parsers import PARSERS
from diag.sources.stacks import pyspy
from diag.state.stack_activity import Activity
from tests.core.sidecars import Sidecar, needs_pyspy, ticks
from tests.detectors.gpufacts import sample

pytest.importorskip("torch", reason="its libraries make the pause as long as a real one")
pytestmark = [pytest.mark.live, pytest.mark.timeout(280), needs_pyspy]

DUMPS = 20
# 100 % of a core in C without a frame of its own and without the GIL, as `.item()` spins in the driver; and a rank that
# sleeps elsewhere, for which the first waits.
SPINS = """
import hashlib, torch
def loss_of():
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)
print("up", flush=True)
loss_of()
"""
SLEEPS = """
import sys, torch
def wait_for_leader():
    sys.stdin.read()
print("up", flush=True)
wait_for_leader()
"""


@pytest.fixture
def ranks() -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    with contextlib.ExitStack() as stack:
        found = []
        for program in (SPINS, SLEEPS):
            one = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            stack.callback(one.kill)
            assert one.stdout is not None and one.stdout.readline() == b"up\n"
            found.append(one)
        yield tuple(found)


class Diag:
    """Sidecars beside all ranks, and an engine that is told what they read. To it they are on a GPU."""

    def __init__(self, ranks: tuple[subprocess.Popen[bytes], ...]) -> None:
        self.engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
        self.changes: list[Change] = []
        self.engine.advance(time.time())
        host, world = os.uname().nodename, len(ranks)
        self.engine._dispatch(RunStarted(None, ("torchrun", "train.py"), 1, host, world))
        for number, one in enumerate(ranks):
            place = Placement(number, number, world, host, one.pid, ticks(one.pid), 0, world, "torchrun")
            self.engine._dispatch(RankFound(number, place, "python train.py"))
        self.engine._dispatch(sample(0, pids=()))
        self.sidecars = [
            Sidecar(one.pid, rank=number, proc_seconds=1.0, close_stack_seconds=1.0)
            for number, one in enumerate(ranks)
        ]
        for sidecar in self.sidecars:
            sidecar.order({"mode": "closer"})

    def hear(self) -> list[dict[str, object]]:
        """What has come since; returns the answers to orders."""
        answers = []
        for sidecar in self.sidecars:
            with contextlib.suppress(queue.Empty):
                while True:
                    message = sidecar.sent.get_nowait()
                    assert message is not None, "a sidecar has ended"
                    if "source" in message:
                        record = replace(Record.from_json(message), at=max(time.time(), self.engine.now))
                        self.changes += self.engine.feed(record)
                    elif "dumped" in message:
                        answers.append(message)
        self.changes += self.engine.advance(time.time())
        return answers

    def verdict(self) -> tuple[str, str, tuple[int, ...]] | None:
        found = [one for one in self.engine.active() if one.id in ("hang", "held-up")]
        return (found[0].id, found[0].klass, found[0].ranks) if found else None


def wait_for_both(diags: tuple[Diag, ...], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for one in diags:
            one.hear()
        if all(one.verdict() for one in diags):
            return
        time.sleep(0.05)
    raise AssertionError([one.verdict() for one in diags])


def stood(diags: tuple[Diag, ...], before: tuple[object, ...]) -> None:
    """Nothing was told anew, differently, or as over."""
    told = [
        (change.kind.value, *key)
        for one, verdict in zip(diags, before, strict=True)
        for change in one.changes
        if (key := (change.finding.id, change.finding.klass, change.finding.ranks)) != verdict
        or change.kind is not ChangeKind.UPDATED
    ]
    assert told == []
    assert tuple(one.verdict() for one in diags) == before
    assert all(one.engine.job.ranks[0].activity is Activity.GPU_SYNC for one in diags)


def test_verdict_stands_through_twenty_dumps_with_a_second_diag_beside(
    ranks: tuple[subprocess.Popen[bytes], ...],
) -> None:
    pauses, other = diags = (Diag(ranks), Diag(ranks))
    try:
        # given a hang that both have told
        wait_for_both(diags, 120.0)
        before = tuple(one.verdict() for one in diags)
        assert all(one.engine.job.ranks[0].activity is Activity.GPU_SYNC for one in diags)
        assert {one and one[2] for one in before} == {(1,)}
        for one in diags:
            one.changes.clear()

        # when one of them reads native frames of both ranks, again and again
        seconds = []
        for number in range(DUMPS):
            for sidecar in pauses.sidecars:
                sidecar.order({"native": f"n{number}", "deadline": 20.0})
            answers: list[dict[str, object]] = []
            end = time.monotonic() + 30.0
            while len(answers) < 2 and time.monotonic() < end:
                answers += pauses.hear()
                other.hear()
                time.sleep(0.02)
            assert [one for one in answers if "stdout" not in one["native"]] == []  # type: ignore[operator]
            seconds += [one["seconds"] for one in answers]
        end = time.monotonic() + 6.0  # what the last pause left in the readings
        while time.monotonic() < end:
            for one in diags:
                one.hear()
            time.sleep(0.05)

        print(f"{len(seconds)} pauses of {min(seconds):.2f}-{max(seconds):.2f} s")
        stood(diags, before)
    finally:
        for one in diags:
            for sidecar in one.sidecars:
                sidecar.end()


def test_verdict_stands_through_py_spy_of_a_person_that_no_diag_knows_of(
    ranks: tuple[subprocess.Popen[bytes], ...],
) -> None:
    diag = Diag(ranks)
    try:
        wait_for_both((diag,), 120.0)
        before = (diag.verdict(),)
        diag.changes.clear()
        command = [str(pyspy.find_executable()), "dump", "--native", "--pid", str(ranks[0].pid)]
        for _ in range(DUMPS):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as one:
                while one.poll() is None:
                    diag.hear()
                    time.sleep(0.02)
            end = time.monotonic() + 2.5  # as a person does it: one and the same reading seldom holds two
            while time.monotonic() < end:
                diag.hear()
                time.sleep(0.05)
            assert one.returncode == 0
        stood((diag,), before)
    finally:
        for sidecar in diag.sidecars:
            sidecar.end()
