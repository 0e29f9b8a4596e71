"""What the job prints, as records: that of CMD comes by the relay, that of ranks from the files they print to.

No more of it waits for the hub's thread than a bound. A job that prints 200 MB a second prints faster than lines can
be read. Then the middle is left out and counted, and the last of it is kept: diag neither fills the memory of the
node nor reads on for minutes after the job's end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.agent.rank_finder import Found, RankFinder
from diag.agent.rank_logs import RankFiles
from diag.model import Record
from diag.sources.host import run as run_source
from diag.sources.logs.output import SOURCE, LineAssembler

_MOST_BYTES = 16 << 20  # ours: read in a second or two, and some 60 MB as lines
_TAIL_BYTES = 256 << 10  # kept of what is left out: what a job says last tells why it ended


@dataclass(eq=False)
class Intake:
    """`put` takes a payload of lines, and what to call (from any thread) when it has been read; `left_out` takes
    how many lines have been left out by now. Both are called on the thread that calls `take`."""

    put: Callable[[dict[str, Any], Callable[[], None]], None]
    left_out: Callable[[int], None]
    literals: tuple[str, ...] = ()  # of rules: see LineAssembler
    most_bytes: int = _MOST_BYTES
    _assemblers: dict[str, LineAssembler] = field(default_factory=dict)
    _bytes: int = 0  # that wait to be read
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # of what is left out: its end, lines cut off before that
    _tails: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    _lines_left_out: int = 0

    @property
    def dropped_lines(self) -> int:
        return self._lines_left_out + sum(lines.dropped_lines for lines in list(self._assemblers.values()))

    def take(self, stream: str, data: bytes) -> None:
        if self._bytes > self.most_bytes:
            tail, cut = self._tails.get(stream, (b"", 0))
            tail += data
            more = max(0, len(tail) - _TAIL_BYTES)
            self._tails[stream] = (tail[more:], cut + tail.count(b"\n", 0, more))
            return
        self._feed(stream, data)

    def end(self) -> None:
        """CMD ended: what is in its last, unfinished lines is complete."""
        for stream in list(self._assemblers.keys() | self._tails.keys()):
            self._feed(stream, b"", final=True)

    def _feed(self, stream: str, data: bytes, *, final: bool = False) -> None:
        tail, cut = self._tails.pop(stream, (b"", 0))
        lines = self._assemblers.setdefault(stream, self._assembler(stream))
        if cut:  # its unfinished line ended in what was left out, and the tail begins within another
            dropped = lines.dropped_lines
            lines = self._assemblers[stream] = self._assembler(stream)
            lines.dropped_lines = dropped
            tail = tail.partition(b"\n")[2]
            self._lines_left_out += cut
        payload = lines.feed(tail + data, final=final)
        if payload is not None:
            size = len(tail) + len(data)
            self._now_waiting(size)
            self.put(payload, lambda: self._now_waiting(-size))
        if cut:
            self.left_out(self._lines_left_out)

    def _assembler(self, stream: str) -> LineAssembler:
        return LineAssembler(stream, runs=True, literals=self.literals)

    def _now_waiting(self, more: int) -> None:
        with self._lock:
            self._bytes += more


class JobOutput:
    """`put` takes a record, and what to call when that is in. `job_dir`: the run directory of the `diag run` that
    started this job and died. `attached`: to a job that another started, whose output no relay reads."""

    def __init__(
        self,
        put: Callable[[Record, Callable[[], None] | None], None],
        host: str,
        run_dir: Path | None,
        job_dir: Path | None,
        *,
        attached: bool,
        literals: tuple[str, ...] = (),
    ) -> None:
        self._put = put
        self._host = host
        self._job_dir = job_dir
        self._home = job_dir or run_dir  # in which the job's own files are
        self._attached = attached
        self._intake = Intake(
            lambda payload, then: self._put_lines(payload, None, then), self._left_out, literals
        )
        self._files = RankFiles(
            self._put_lines,
            lambda path, error: self._failed(f"{path.name} cannot be read: {error.strerror}"),
            literals,
        )

    @property
    def dropped_lines(self) -> int:
        return self._intake.dropped_lines

    def take(self, stream: str, data: bytes, offset: int = 0) -> None:
        """A chunk of what CMD printed, from the relay's thread."""
        self._intake.take(stream, data)

    def leave_out(self, paths: Iterable[Path]) -> None:
        """Files that the relay already follows: not to be read a second time."""
        self._files.leave_out(paths)

    def follow(self, found: Found, finder: RankFinder) -> None:
        """Whatever files this rank prints to."""
        place = found.placement
        printed = list(finder.output_files(place.pid))
        if self._attached and not printed:
            self._failed(*finder.why_not_heard(place.pid), rank=place.rank)
        for stream, path, appended in printed:
            # `>> train.log`: an older run's lines come first
            earlier = appended and path.parent != self._job_dir
            self._files.follow(path, f"{stream}:{path.name}", place.rank, from_end=earlier, pid=place.pid)

    def follow_nccl(self, found: Found) -> None:
        """The file that NCCL writes its log to, where that is none of the run directory's."""
        named = found.variables.get("NCCL_DEBUG_FILE", "")
        if named and not (self._home and named.startswith(f"{self._home}/")):
            self._files.await_nccl(named, found.placement.pid, found.placement.rank)

    def read_new(self) -> None:
        self._files.read_new(self._home)

    def end(self) -> None:
        """CMD ended: what is in its last, unfinished lines is complete; files of ranks are read to their ends."""
        self._intake.end()
        self._files.read_rest()

    def _put_lines(
        self, payload: dict[str, Any] | None, rank: int | None, then: Callable[[], None] | None = None
    ) -> None:
        if payload is not None:
            self._put(Record(SOURCE, payload, rank=rank, host=self._host, emitted=time.time()), then)

    def _left_out(self, lines: int) -> None:
        self._failed(
            f"{lines:,} lines were left unread: the job printed them faster than diag reads",
            "if they matter, read them in the run directory's output.log",
        )

    def _failed(self, reason: str, remedy: str = "", rank: int | None = None) -> None:
        self._put(run_source.failed("output", reason, remedy, rank=rank, host=self._host), None)
