"""The parts of a dump, each in time or reported as missing: what it cost, and why it failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def probe_row(
    name: str, seconds: float | None, reason: str = "", *, paused_target: bool = False
) -> dict[str, Any]:
    """As a dump has it. `reason`: why it failed; empty: it worked."""
    return {
        "probe": name,
        "seconds": seconds,
        "paused_target": paused_target,
        "ok": not reason,
        "reason": reason,
    }


@dataclass(eq=False, slots=True)
class Probe:
    """One part. `read` returns why there is nothing, or an empty text; what it raises is a bug in diag."""

    name: str
    read: Callable[[], str]
    done: threading.Event = field(default_factory=threading.Event)
    reason: str = ""  # empty: it worked
    reader: str = ""
    seconds: float = 0.0

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.reason = self.read()
        except Exception as error:  # the outermost frame of a thread: a dump names what it lacks
            self.reason = f"bug in diag: {type(error).__name__}: {error}"
        self.seconds = time.monotonic() - began
        self.done.set()

    def to_json(self) -> dict[str, Any]:
        row = probe_row(self.name, round(self.seconds, 6), self.reason)
        return row | {"reader": self.reader} if self.reader else row


@dataclass(eq=False, slots=True)
class Probes:
    """Those of one dump. Each chain has a thread of its own: the kernel can hold up any reading of a sick
    process. `until`: the dump's deadline, on the monotonic clock."""

    until: float
    all: list[Probe] = field(default_factory=list)

    @property
    def left(self) -> float:
        return max(0.001, self.until - time.monotonic())

    def start(self, *chain: Probe) -> None:
        """Run these one after the other."""

        def run() -> None:
            for probe in chain:
                probe.run()

        self.all += chain
        threading.Thread(target=run, name="probe", daemon=True).start()

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
                rows.append(probe_row(probe.name, seconds, "not finished in time"))
        return rows, late
