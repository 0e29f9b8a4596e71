"""What a sampler is: one thing that is read again and again, on a thread of its own, so that what the kernel or a
sick device holds up holds up nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from diag.model import Payload, Record
from diag.sources.host import run as run_source
from diag.text.errors import SourceUnavailable

_COST_RATIO = 0.01  # of a core: what is dear to read is read less often,
_LONGEST_SECONDS = 60.0  # but not so seldom that a port that goes down is missed


@dataclass(eq=False)
class Reporter:
    """Takes what is read, and what cannot be: that once for each reason, and again when it can. For several
    threads. `sampled` takes a source and the seconds that it took, `erred` a source and a code for why it gave
    nothing."""

    put: Callable[[Record], None]
    host: str = ""
    rank: int | None = None
    sampled: Callable[[str, float], None] = lambda source, seconds: None
    erred: Callable[[str, str], None] = lambda source, reason: None
    _failing: dict[str, str] = field(default_factory=dict)

    def record(self, source: str, payload: Payload, seconds: float | None = None) -> None:
        """`seconds`: what it took, where that is counted."""
        if seconds is not None:
            self.sampled(source, seconds)
        self.put(Record(source, payload, self.rank, self.host, time.time()))

    def failed(self, what: str, reason: str, remedy: str = "") -> None:
        """`what`, by the name under which it is `not checked`, cannot be read."""
        if self._failing.get(what) == reason:
            self.erred(what, "again")
            return
        self._failing[what] = reason
        self.put(run_source.failed(what, reason, remedy, rank=self.rank, host=self.host))

    def failed_by_bug(self, what: str, error: Exception) -> None:
        self.failed(what, f"bug in diag: {type(error).__name__}: {error}", "report it, please")

    def works(self, what: str) -> None:
        if self._failing.pop(what, None) is not None:
            self.put(run_source.works(what, rank=self.rank, host=self.host))


class Sampler:
    """Overrides `sample`, or `run` where something else than time makes it read."""

    name: ClassVar[str] = ""  # of its thread
    what: ClassVar[str] = ""  # the name under which it is `not checked`
    sources: ClassVar[tuple[str, ...]] = ()  # whose records it makes
    delay_seconds: ClassVar[float] = 0.0  # before the first reading

    def __init__(self, reporter: Reporter, every_seconds: float = 10.0) -> None:
        self.reporter = reporter
        self.every_seconds = every_seconds
        self.stopped = False
        self.thread: threading.Thread | None = None
        self._wake = threading.Event()

    # -- for whoever has it -------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises RuntimeError or OSError where there are no more threads or files."""
        self.thread = threading.Thread(target=self._guarded, name=self.name, daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """The next reading is due now. Does not wait."""
        self._wake.set()

    def stop(self) -> None:
        self.stopped = True
        self._wake.set()

    # -- on its own thread --------------------------------------------------------------------------------

    def sample(self) -> None:
        """One reading."""
        raise NotImplementedError

    def run(self) -> None:
        self._wake.wait(self.delay_seconds)
        while not self.stopped:
            began, spent = time.monotonic(), self.cpu_seconds()
            self.sample()
            wall = time.monotonic() - began
            pause = self.period(self.cpu_seconds() - spent, wall)
            if self._wake.wait(max(0.0, pause - wall)):
                self._wake.clear()

    def period(self, cpu: float, wall: float) -> float:
        """Seconds from one reading to the next; the last one took so much."""
        return max(self.every_seconds, min(cpu / _COST_RATIO, _LONGEST_SECONDS))

    def cpu_seconds(self) -> float:
        """What its readings have cost so far."""
        return time.thread_time()

    def tidy(self) -> None:
        """The last reading was made."""

    def read(self, what: str, source: str, reading: Callable[[], Payload], *, timed: bool = True) -> None:
        """The record of one source, or why there is none. `timed`: count what it took."""
        began = time.monotonic()
        try:
            payload = reading()
        except SourceUnavailable as error:
            if not self.stopped:
                self.reporter.failed(what, error.reason, error.remedy)
        except Exception as error:  # of one source: the sampler has others, and another time
            self.reporter.failed_by_bug(what, error)
        else:
            self.reporter.record(source, payload, time.monotonic() - began if timed else None)
            self.reporter.works(what)

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # the outermost frame of a thread: the alternative is silence
            self.reporter.failed_by_bug(self.what, error)
        finally:
            self.tidy()
