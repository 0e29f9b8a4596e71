"""What CMD prints, on its way from the relay's thread to the hub's: no more of it waits than a bound.

A job that prints 200 MB a second prints faster than lines can be read. Then the middle is left out and
counted, and the last of it is kept: diag neither fills the memory of the node nor reads on for minutes after
the job's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from diag.sources.logs.output import LineAssembler

_MOST_BYTES = 16 << 20  # ours: read in a second or two, and some 60 MB as lines
_TAIL_BYTES = 256 << 10  # kept of what is left out: what a job says last tells why it ended


class Intake:
    """`put` takes a payload of lines, and what to call (from any thread) when it has been read; `left_out` takes
    how many lines have been left out by now. Both are called on the thread that calls `take`."""

    def __init__(
        self,
        put: Callable[[dict[str, Any], Callable[[], None]], None],
        left_out: Callable[[int], None],
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._put, self._report, self._most = put, left_out, most_bytes
        self._assemblers: dict[str, LineAssembler] = {}
        self._bytes = 0  # that wait to be read
        self._lock = threading.Lock()
        # of what is left out: its end, lines cut off before that
        self._tails: dict[str, tuple[bytes, int]] = {}
        self._left_out = 0

    @property
    def dropped_lines(self) -> int:
        return self._left_out + sum(lines.dropped_lines for lines in list(self._assemblers.values()))

    def take(self, stream: str, data: bytes) -> None:
        if self._bytes > self._most:
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
        lines = self._assemblers.setdefault(stream, LineAssembler(stream))
        if cut:  # its unfinished line ended in what was left out, and the tail begins within another
            dropped = lines.dropped_lines
            lines = self._assemblers[stream] = LineAssembler(stream)
            lines.dropped_lines = dropped
            tail = tail.partition(b"\n")[2]
            self._left_out += cut
        payload = lines.feed(tail + data, final=final)
        if payload is not None:
            size = len(tail) + len(data)
            self._now_waiting(size)
            self._put(payload, lambda: self._now_waiting(-size))
        if cut:
            self._report(self._left_out)

    def _now_waiting(self, more: int) -> None:
        with self._lock:
            self._bytes += more
