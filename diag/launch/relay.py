"""Follows the job's output files, hands each byte on unchanged, and puts diag's own messages between the
job's lines.

One thread follows (`on_output` must not wait for a terminal held by Ctrl-S), one writes for each output. The
file is the buffer between them; nothing is queued in memory.
"""

from __future__ import annotations

import errno
import os
import re
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diag.launch.output_file import (
    CHUNK,
    KEEP_BYTES,
    RESERVE_BYTES,
    Cursor,
    OutputFile,
    Report,
    Watch,
    open_output_file,
    same_file,
)

ACTIVE_S = 0.04  # ours: 25 looks a second while the job talks: a bar moves as it does alone (cost: tests/run/test_cost.py)
IDLE_S = 0.05  # ours: where inotify does not work; the first line after a silence may be this late
_NEWLINE_WAIT_S = 0.25  # ours: how long a message waits for the job to end its line before it breaks the line
_MAINTAIN_S = 1.0
_REDRAW_BYTES = 1024  # ours: a longer partial line is no progress bar
_UP = re.compile(rb"\x1b\[(\d*)[AF]")  # the cursor goes up
_UNFINISHED = re.compile(rb"\x1b(?:\[\d*)?\Z")
_LONGEST_UP = 8
_MOST_LINES = 500  # of a terminal
_BLOCK_BYTES = 1 << 16
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET)  # reader closed, terminal hung up

OnOutput = Callable[[str, bytes, int], object]


@dataclass(frozen=True, slots=True)
class Sink:
    """One followed file and where it goes; stream is "stdout", "stderr", or "both" when they are one file."""

    stream: str
    lane: OutputFile
    fd: int


def open_outlets(
    folder: Path,
    *,
    keep_bytes: int = KEEP_BYTES,
    reserve_bytes: int = RESERVE_BYTES,
    report: Report = lambda text: None,
    closed: Collection[int] = (),
) -> tuple[Sink, ...]:
    """The output files of a run: one when diag's stdout and stderr are one file, else two; OutputFileError when
    impossible.

    `closed`: descriptors that were closed when diag started (`command.hold_closed_stdio`); CMD finds them
    closed too.
    """
    wanted = [(stream, fd) for stream, fd in (("stdout", 1), ("stderr", 2)) if fd not in closed]
    if len(wanted) == 2 and same_file(1, 2):
        wanted = [("both", 1)]
    outlets: list[Sink] = []
    try:
        for stream, fd in wanted:
            name = "output.log" if stream == "both" else f"{stream}.log"
            lane = open_output_file(
                folder / name, keep_bytes=keep_bytes, reserve_bytes=reserve_bytes, report=report
            )
            outlets.append(Sink(stream, lane, fd))
    except BaseException:
        for outlet in outlets:
            outlet.lane.close()
            outlet.lane.path.unlink(missing_ok=True)
        raise
    return tuple(outlets)


@dataclass(eq=False)
class Follower:
    """The thread that follows lanes: `on_output(stream, data, offset)` gets each chunk with its place in the
    file.

    Without `on_output` nothing is read. `after(i, count)` is called once lane `i` was read, `tend()`
    about once a second and each `tend_bytes`.
    """

    lanes: Sequence[tuple[str, OutputFile]]
    on_output: OnOutput | None
    report: Report = lambda text: None
    after: Callable[[int, int], object] = lambda i, count: None
    tend: Callable[[], object] = lambda: None
    tend_bytes: int = 0
    begin: Sequence[int] = ()  # of each lane; else its start
    _ends: Sequence[int] = ()
    _ended: bool = False
    _pause: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._cursors = [lane.cursor() for _, lane in self.lanes]
        for cursor, offset in zip(self._cursors, self.begin, strict=False):
            cursor.offset = offset
        self.followed = [0] * len(self.lanes)  # how far `on_output` has each
        self._watch = Watch([lane for _, lane in self.lanes])
        self.thread = threading.Thread(target=self._follow, name="relay", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def end(self, ends: Sequence[int]) -> None:
        """Go on to these places and stop: what is written from now on is not followed."""
        if not self._ended:
            self._ends = ends
            self._ended = True
            self._pause.set()
            self._watch.wake()

    def close(self) -> None:
        """Once the thread has ended."""
        self._watch.close()

    def _follow(self) -> None:
        tended, since = 0.0, 0
        woken = True  # whether we read because there was something to read
        while not self._ended:
            counts = [self._follow_one(i) for i in range(len(self.lanes))]
            since += sum(counts)
            now = time.monotonic()
            if now - tended >= _MAINTAIN_S or since >= self.tend_bytes > 0:
                tended, since = now, 0
                self.tend()
            if any(counts):
                if not woken and self._watch.works:
                    self._watch.give_up()
                woken = True
                if max(counts) < CHUNK:  # after a short read more of it is worth a wait
                    self._pause.wait(ACTIVE_S)
            else:
                woken = self._watch.wait(_MAINTAIN_S if self._watch.works else IDLE_S)
        for i, end in enumerate(self._ends):
            while self._cursors[i].offset < end and self._follow_one(i):
                pass

    def _follow_one(self, i: int) -> int:
        (stream, _), cursor = self.lanes[i], self._cursors[i]
        if self.on_output is None:
            count = cursor.skip()
        else:
            data = cursor.read_new()
            count = len(data)
            if data:
                try:
                    self.on_output(stream, data, cursor.offset - count)
                except Exception:
                    self.on_output = None
                    self.report(
                        f"diag no longer reads the job's output, it is only passed on:\n{traceback.format_exc()}"
                    )
        self.followed[i] = cursor.offset
        self.after(i, count)
        return count


class Relay:
    """The running relay; with no outlets (CMD has diag's own stdout) only `say` does something. `on_output`:
    see Follower."""

    def __init__(
        self,
        outlets: Sequence[Sink],
        *,
        on_output: OnOutput | None = None,
        report: Report = lambda text: None,
    ) -> None:
        self._writers = [_Writer(outlet, report) for outlet in outlets]
        self._ends: list[int] = []
        lanes = [(outlet.stream, outlet.lane) for outlet in outlets]
        self._follower = Follower(
            lanes,
            on_output,
            report=report,
            after=self._wake,
            tend=self._maintain,
            tend_bytes=min((lane.maintain_bytes for _, lane in lanes), default=0),
        )

    def start(self) -> None:
        for writer in self._writers:
            writer.start()
        self._follower.start()

    def say(self, text: str) -> None:
        """Print a message of diag's own on stderr, on lines of its own; while CMD runs it never waits for the
        terminal."""
        data = text.encode("utf-8", "replace").rstrip(b"\n") + b"\n"
        for writer in self._writers:
            if writer.outlet.stream in ("stderr", "both") and writer.say(data):
                return
        try:
            os.write(2, data)
        except OSError:  # closed: no reader is there
            pass

    def sizes(self) -> list[int]:
        """How much CMD has written by now, of each outlet."""
        return [writer.outlet.lane.size() for writer in self._writers]

    def flush(self, timeout: float) -> bool:
        """Wait until what CMD has written by now is out, and `on_output` has it; False when they did not take
        it in time."""
        deadline = time.monotonic() + timeout
        for i, (writer, end) in enumerate(zip(self._writers, self.sizes(), strict=True)):
            writer.wake.set()
            while (writer.outlet.lane.relayed < end and writer.thread.is_alive()) or (
                self._follower.followed[i] < end and self._follower.thread.is_alive()
            ):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """CMD has ended: put out all it wrote and all messages, then stop; False when the reader did not take
        it in time.

        What processes that CMD left behind write from now on stays in the file: diag must not wait for them.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._ends = self._ends or self.sizes()
        self._follower.end(self._ends)
        for writer, end in zip(self._writers, self._ends, strict=True):
            writer.finish(end)
        threads = [self._follower.thread, *(writer.thread for writer in self._writers)]
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return False
        self._follower.close()
        return True

    def close(self) -> None:
        """After `drain`: give back the disk space that was kept ready for more output."""
        for writer in self._writers:
            writer.outlet.lane.close()

    def _maintain(self) -> None:
        for writer in self._writers:
            writer.outlet.lane.maintain()

    def _wake(self, i: int, count: int) -> None:
        writer = self._writers[i]
        lane = writer.outlet.lane
        if count or lane.size() < lane.relayed:  # new output, or a cut that the writer must see
            writer.wake.set()


class _Writer:
    """The thread that writes one lane to its outlet."""

    def __init__(self, outlet: Sink, report: Report) -> None:
        self.outlet = outlet
        self.wake = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"relay-{outlet.stream}", daemon=True)
        self._cursor: Cursor = outlet.lane.cursor()
        self._report = report
        self._line = _Line()
        self._messages: deque[bytes] = deque()
        self._message_lock = threading.Lock()
        self._said_at = 0.0
        self._end: int | None = None
        self._done = False
        self._gone = False

    def start(self) -> None:
        self.thread.start()

    def say(self, data: bytes) -> bool:
        """Queue a message; False when this writer writes no more."""
        with self._message_lock:
            if self._done:
                return False
            if not self._messages:
                self._said_at = time.monotonic()
            if len(self._messages) < 1000:  # a terminal held for hours must not fill the memory
                self._messages.append(data)
        self.wake.set()
        return True

    def finish(self, end: int) -> None:
        self._end = end
        self.wake.set()

    def _run(self) -> None:
        while True:
            self.wake.clear()
            if self._gone:
                self._cursor.skip()
                data = b""
            else:
                data = self._cursor.read_new()
                self._put(data)
            self.outlet.lane.relayed = self._cursor.offset
            if self._end is not None and (not data or self._cursor.offset >= self._end):
                with self._message_lock:
                    self._done = True
                self._speak(last=True)
                return
            if len(data) < CHUNK:  # after a short read more of it is worth a wait: the follower wakes us
                self.wake.wait(0.05 if self._messages else None)

    def _put(self, data: bytes) -> None:
        cut = 0
        if self._messages and not self._line.moves_up and not _UP.search(data):
            cut = data.rfind(b"\n") + 1
            if cut or self._line.at_start:
                self._write(data[:cut])
                self._speak()
        self._write(data[cut:])
        # between two of its frames, not at one of its line breaks
        if self._messages and data and self._line.moves_up:
            self._speak()
        if self._messages and len(data) < CHUNK and time.monotonic() - self._said_at > _NEWLINE_WAIT_S:
            self._speak()

    def _speak(self, last: bool = False) -> None:
        with self._message_lock:
            text = b"".join(self._messages)
            self._messages.clear()
        if not text:
            return
        if self._line.at_start:
            self._emit(text)
        else:  # below the bar, which is then drawn again, so that the job's next \r finds it where it left it
            self._emit(self._line.leave() + text + (b"" if last else self._line.redraw()))

    def _write(self, data: bytes) -> None:
        if data:
            self._line.feed(data)
            self._emit(data)

    def _emit(self, data: bytes) -> None:
        rest = memoryview(data)
        reported = False
        while rest and not self._gone:
            try:
                rest = rest[os.write(self.outlet.fd, rest) :]
            except BlockingIOError:  # someone made the shared terminal non-blocking
                poll = select.poll()
                poll.register(self.outlet.fd, select.POLLOUT)
                poll.poll(1000)
            except OSError as error:
                if not reported:
                    reported = True
                    self._report(
                        f"cannot write the job's {self.outlet.stream}: {error.strerror}; the job continues, "
                        f"its output is in {self.outlet.lane.path}"
                    )
                if error.errno in _GONE or self._end is not None:
                    self._gone = True
                else:  # a full disk under `diag run ... > file`: the lane keeps the output until there is room
                    time.sleep(1.0)


class _Line:
    """The job's unfinished line, as far as it must be known to put a message below it; and of a job that
    draws several lines again and again by moving the cursor up (nested bars of tqdm, rich's live display) all
    that is below the cursor."""

    def __init__(self) -> None:
        self._tail = b""
        self._below = 0  # lines below the cursor's that the job has drawn
        self._cut_off = b""  # of a sequence whose rest is still to come
        self._block: bytes | None = None  # since the cursor went up last; None while it is below all lines

    @property
    def at_start(self) -> bool:
        return not self._tail and self._block is None

    @property
    def moves_up(self) -> bool:
        return self._block is not None

    def feed(self, data: bytes) -> None:
        cut = data.rfind(b"\n") + 1
        self._tail = data[max(cut, len(data) - 8192) :] if cut else (self._tail + data[-8192:])[-8192:]
        data, self._cut_off = self._cut_off + data, b""
        unfinished = _UNFINISHED.search(data, max(0, len(data) - _LONGEST_UP))
        if unfinished is not None:
            data, self._cut_off = data[: unfinished.start()], unfinished[0]
        if self._block is None and not _UP.search(data):
            return
        done = 0
        for match in _UP.finditer(data):
            self._go_down(data[done : match.start()])
            self._below += min(int(match[1] or 1), _MOST_LINES) if len(match[1]) < _LONGEST_UP else 0
            self._block = b""
            done = match.end()
        self._go_down(data[done:])

    def _go_down(self, data: bytes) -> None:
        lines = data.count(b"\n")
        if self._block is None:
            return
        self._block += data
        self._below -= lines
        if self._below < 0 or len(self._block) > _BLOCK_BYTES:  # it goes on below as any output does
            self._below, self._block = 0, None

    def leave(self) -> bytes:
        """End the line on the screen, and the colour that it may be in; with those that are below it."""
        coloured = b"\x1b[" in (self._tail if self._block is None else self._block)
        return (b"\x1b[0m" if coloured else b"") + b"\n" * (self._below + 1)

    def redraw(self) -> bytes:
        """What the screen shows of the line: the text after the last \\r, and that \\r again if it ended in
        one. Where the job moves up: all since it did, so that its next move ends where it means to. The rest
        of it the job draws again."""
        if self._block is not None:
            self._below = 0  # of those lines none is below any more
            return self._block
        shown = self._tail.rstrip(b"\r")
        text = shown.rpartition(b"\r")[2]
        return text + self._tail[len(shown) :] if len(text) <= _REDRAW_BYTES else b""
