"""The parts of a dump, each in time or said to be missing: what it cost, and why it failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


class Probe:
    """One part. Its work fills in what it found; whoever waits for it reads that, or that it has not come
    back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = threading.Event()
        self.reason = ""  # empty: it worked
        self.paused_target = False
        self.reader = ""
        self.seconds = 0.0

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "probe": self.name,
            "seconds": round(self.seconds, 6),
            "paused_target": self.paused_target,
            "ok": not self.reason,
            "reason": self.reason,
        }
        return row | {"reader": self.reader} if self.reader else row


class Probes:
    """Those of one dump. Each chain has a thread of its own: the kernel can hold up any reading of a sick
    process."""

    def __init__(self, until: float) -> None:
        """`until`: the dump's deadline, on the monotonic clock."""
        self.until = until
        self.all: list[Probe] = []

    @property
    def left(self) -> float:
        return max(0.001, self.until - time.monotonic())

    def start(self, *works: tuple[Probe, Callable[[Probe], None]]) -> None:
        """Run these one after the other. A work raises for "bug in diag"; what it could not look at is its
        `reason`."""
        self.all += [probe for probe, _ in works]
        threading.Thread(target=self._run, args=(works,), name="probe", daemon=True).start()

    def _run(self, works: Sequence[tuple[Probe, Callable[[Probe], None]]]) -> None:
        for probe, work in works:
            began = time.monotonic()
            try:
                work(probe)
            except Exception as error:  # the outermost frame of a thread: a dump says what it lacks
                probe.reason = f"bug in diag: {type(error).__name__}: {error}"
            probe.seconds = time.monotonic() - began
            probe.done.set()

    def wait(self) -> tuple[list[dict[str, Any]], list[str]]:
        """All of them as JSON, and the names of those that did not come back by `until`."""
        began = time.monotonic()
        rows, late = [], []
        for probe in self.all:
            if probe.done.wait(self.left):
                rows.append(probe.to_json())
            else:
                late.append(probe.name)
                seconds = round(time.monotonic() - began, 6)
                rows.append(
                    probe.to_json() | {"ok": False, "reason": "not finished in time", "seconds": seconds}
                )
        return rows, late
