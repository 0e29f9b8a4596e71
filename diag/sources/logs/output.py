"""What the job prints: bytes into lines (I/O side, keeps a torn line until its end), lines into facts
(`parse`)."""

from __future__ import annotations

import codecs
import errno
import io
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from diag.knowledge.log_prefix import without_outer
from diag.launch.launchers.secrets import hidden_in_lines
from diag.model import Record
from diag.model.observations import (
    LogLine,
    Moment,
    NcclPlainLines,
    Observation,
    PlainLines,
    QuietLine,
    QuietLines,
    Unparsed,
)
from diag.sources.logs import nccl_log
from diag.sources.logs.line_facts import read_text
from diag.sources.logs.prefilter import LineFilter, Says
from diag.text.words import shape_of

SOURCE = "output"

# Longer lines are cut here (the 15 kB of `args: MegatronRLHFArguments(...)` fit); the text says so.
MAX_LINE_CHARS = 64 * 1024
# In place of a line's "is a bar": the item holds several lines of NCCL that have no fact, separated by line
# feeds.
PLAIN_RUN = 2
# The same of lines without a word that any reader knows (see `prefilter`). Where it is not a log on disk, the middle of a
# long run is left out of the record: a third place of the item has how many lines those are.
PLAIN_LINES = 3
_FIRST_LINES = 100  # kept of such a run: twice what is looked at for something new in a second (`Printed`, `LearnedSteps`)
_LEAST_LEFT_OUT = 100
# A line, or a bar, that only parsers want (`Says.A_FACT`).
QUIET, QUIET_BAR = 4, 5
_FORMS = 100  # of its middle one line of each shape stays: two runs are compared by what they print
_LAST_LINES = 200  # so many lines of a rank are shown (rankstate.TAIL_LINES)
# One record holds at most this many lines that are read, more than 256 KiB of the relay have unless they are very short: a
# burst of 200 MB/s must not fill the journal. What is left out is counted.
MAX_LINES_PER_RECORD = 8000
# A rank's own file is read to its end when the job has ended: at most so much of it. Ours: a second for eight
# ranks.
_REST_BYTES = 4 << 20


class LineAssembler:
    """Turns a byte stream into payloads of whole lines. Non-UTF-8 bytes become \\xNN, secrets that are known
    by their form ***; nothing raises.

    `whole`: of a log on disk no line is dropped, and lines are counted. `runs`: those that nobody has a word for stay in
    one piece; `literals` are words of rules. Where those are known, and it is no log on disk, the middle of such a piece is
    left out.
    """

    def __init__(
        self,
        stream: str,
        *,
        whole: bool = False,
        runs: bool = False,
        literals: tuple[str, ...] = (),
    ) -> None:
        self.stream = stream
        self.whole = whole
        self._filter = LineFilter(literals) if runs else None
        self._short = bool(literals) and not whole
        self.lines = 0  # that are complete, where they are counted
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""
        self._cut = 0
        self.dropped_lines = 0

    def feed(self, data: bytes, *, final: bool = False) -> dict[str, Any] | None:
        """The payload of the lines that `data` completes; None when it completes none. Redrawn bars keep the
        last."""
        text = self._rest + self._decoder.decode(data, final)
        # a bar's end, or half of a CRLF: the next byte decides
        held = "\r" if text.endswith("\r") and not final else ""
        whole, newline, rest = text.removesuffix(held).replace("\r\n", "\n").rpartition("\n")
        lines: list[list[Any]] = []
        first = self.lines + 1
        if newline:
            self._add_whole(lines, hidden_in_lines(whole) + newline)
            if self.whole:
                self.lines += whole.count("\n") + 1
        if final and rest:
            self._add(lines, hidden_in_lines(rest))
            if not lines[-1][0]:  # a bar was the last: no empty line after it
                lines.pop()
            rest = ""
        if "\r" in rest:  # a bar in progress: what is redrawn is complete, what is being drawn waits
            done, _, rest = rest.rpartition("\r")
            self._add_bar(lines, done)
        if len(rest) > MAX_LINE_CHARS:
            self._cut += len(rest) - MAX_LINE_CHARS
            rest = rest[:MAX_LINE_CHARS]
        self._rest = rest + held
        if not lines:
            return None
        payload: dict[str, Any] = {"stream": self.stream}
        if self.whole:
            payload["first"] = first
        elif len(lines) > MAX_LINES_PER_RECORD:
            half = MAX_LINES_PER_RECORD // 2
            middle = lines[half:-half]
            # what NCCL says comes once
            kept = [item for item in middle if item[1] in (PLAIN_RUN, PLAIN_LINES) or " NCCL " in item[0]]
            payload["dropped"] = len(middle) - len(kept)
            self.dropped_lines += len(middle) - len(kept)
            lines = [*lines[:half], *kept, *lines[-half:]]
        payload["lines"] = lines
        return payload

    def _add_whole(self, lines: list[list[Any]], text: str) -> None:
        """Whole lines, each with its line feed; runs of NCCL's plain ones stay in one piece."""
        at = 0
        if not self._cut:
            for begin, end in nccl_log.plain_runs(text):
                if begin > at:
                    self._add_some(lines, text[at:begin])
                lines.append([text[begin : end - 1], PLAIN_RUN])
                at = end
        if at < len(text):
            self._add_some(lines, text[at:])

    def _add_some(self, lines: list[list[Any]], text: str) -> None:
        if self._filter is None or self._cut:
            self._add_each(lines, text[:-1])
            return
        for says, count, piece in self._filter.parts(text):
            if says is Says.NOTHING:
                lines.append(self._run(piece, count))
                continue
            begin = len(lines)
            self._add_each(lines, piece)
            if says is Says.A_FACT:
                lines[begin:] = [[line, QUIET_BAR if bar else QUIET] for line, bar in lines[begin:]]

    def _run(self, text: str, count: int) -> list[Any]:
        left_out = count - _FIRST_LINES - _LAST_LINES
        if not self._short or left_out < _LEAST_LEFT_OUT:
            return [text, PLAIN_LINES]
        lines = text.split("\n")
        middle = lines[_FIRST_LINES:-_LAST_LINES]
        forms = list({shape_of(line): line for line in middle}.values())[:_FORMS]
        kept = (*lines[:_FIRST_LINES], *forms, *lines[-_LAST_LINES:])
        return ["\n".join(kept), PLAIN_LINES, count - len(kept)]

    def _add_each(self, lines: list[list[Any]], text: str) -> None:
        for piece in text.split("\n"):
            self._add(lines, piece)

    def _add_bar(self, lines: list[list[Any]], drawn: str) -> None:
        self._cut = 0  # what was cut came before the carriage return
        bar = hidden_in_lines(drawn.rpartition("\r")[2])
        if bar.strip():
            lines.append([bar[:MAX_LINE_CHARS], 1])

    def _add(self, lines: list[list[Any]], piece: str) -> None:
        drawn, redrawn, last = piece.rpartition("\r")
        if redrawn:
            self._add_bar(lines, drawn)
        if self._cut or len(last) > MAX_LINE_CHARS:
            cut = self._cut + max(0, len(last) - MAX_LINE_CHARS)
            last = f"{last[:MAX_LINE_CHARS]} ... [{cut} characters cut]"
            self._cut = 0
        lines.append([last, 0])


class FileFollower:
    """Follows one growing text file (a rank's own log, an NCCL_DEBUG_FILE), and the next one when it is
    rotated.

    Truncation starts it over. A file that was deleted is read on for as long as somebody writes to it.
    """

    CHUNK = 1 << 20

    def __init__(
        self,
        path: Path,
        stream: str,
        *,
        from_end: bool = False,
        opened: int | None = None,
        guarded: Callable[[], int | None] = lambda: None,
        literals: tuple[str, ...] = (),
    ) -> None:
        """`opened`: the file, where it is open already. `guarded` opens it by its name where the job has
        fewer rights than we have (`JobFiles`), None where it has the same. `literals`: see LineAssembler."""
        self.path = path
        self._guarded = guarded
        self._literals = literals
        self._lines = LineAssembler(stream, runs=True, literals=literals)
        self._file = io.FileIO(opened) if opened is not None else self._open(self._guarded())
        self._offset = self._file.seek(0, 2) if from_end else 0

    def _open(self, fd: int | None) -> io.FileIO:
        """Kept open for as long as the rank lives. Whatever has the name now, opening it does not block: a
        FIFO without a writer would, forever. Raises OSError also for what is no regular file."""
        file = io.FileIO(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if fd is None else fd)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(errno.EINVAL, "no regular file", str(self.path))
        return file

    def read_new(self) -> dict[str, Any] | None:
        """The lines that came since last time, of at most CHUNK bytes; None when there is none."""
        size = self._file.seek(0, 2)
        if size == self._offset and (newer := self._rotated()) is not None:
            self._file.close()
            self._file = newer
            size, self._offset = 0, size
        if size < self._offset:
            self._offset = 0
            torn = self._lines.feed(b"", final=True)  # its end will never come
            if torn is not None:
                return torn
            size = self._file.seek(0, 2)
        if size == self._offset:
            return None
        self._file.seek(self._offset)
        data = self._file.read(self.CHUNK)
        self._offset += len(data)
        return self._lines.feed(data)

    def read_rest(self) -> Iterator[dict[str, Any]]:
        """All that is left, its unfinished last line too: it is no longer written. Of more than a moment's
        reading, its end."""
        size = self._file.seek(0, 2)
        if size - self._offset > _REST_BYTES:
            self._offset = size - _REST_BYTES
            self._lines = LineAssembler(self._lines.stream, runs=True, literals=self._literals)
            self._file.seek(self._offset)
            self._offset += len(self._file.readline(MAX_LINE_CHARS))  # it begins within a line
        while True:
            before = self._offset
            payload = self.read_new()
            if payload is not None:
                yield payload
            if self._offset == before:
                break
        last = self._lines.feed(b"", final=True)
        if last is not None:
            yield last

    def _rotated(self) -> io.FileIO | None:
        """Another file that has our name now. It is followed once nothing is left in ours. What is no file is
        left alone; OSError where the rank may not read it."""
        try:
            there, ours = os.stat(self.path), os.fstat(self._file.fileno())  # noqa: PTH116 - per file, twice a second
        except OSError:
            return None
        if not stat.S_ISREG(there.st_mode) or os.path.samestat(there, ours):
            return None
        newer = self._open(self._guarded())
        if os.path.samestat(os.fstat(newer.fileno()), ours):  # its name leads elsewhere in our root only
            newer.close()
            return None
        return newer

    def close(self) -> None:
        self._file.close()


def parse(record: Record) -> Iterator[Observation]:
    """Payload: {"stream": str, "lines": [[text, is_bar], ...], "dropped": int?, "first": int?}; is_bar may be
    PLAIN_RUN or PLAIN_LINES, which may have a third place, QUIET or QUIET_BAR; "first" is the number of the first line, where lines are
    counted; "times": of a log on disk, from which item on another time holds, and which."""
    payload = record.payload
    if not isinstance(payload, dict) or not isinstance(payload.get("lines"), list):
        yield Unparsed(record.rank, SOURCE, "no list of lines", repr(payload)[:200])
        return
    stream = str(payload.get("stream", ""))
    first = payload.get("first")
    number = first if isinstance(first, int) and 0 < first < 1 << 62 else 0
    quiet: list[QuietLine] = []  # whose run is not given yet
    times = dict(payload["times"]) if "times" in payload else {}
    for place, item in enumerate(payload["lines"]):
        if place in times:
            yield Moment(None, times[place])
        if not (isinstance(item, (list, tuple)) and 2 <= len(item) <= 3 and isinstance(item[0], str)):
            yield Unparsed(record.rank, SOURCE, "a line that is not [text, bar]", repr(item)[:200])
            continue
        kind = item[1]
        if quiet and kind not in _IN_QUIET_RUNS:
            yield from _quiet_runs(quiet)
            quiet.clear()
        if kind in (PLAIN_RUN, PLAIN_LINES):
            left_out = item[2] if len(item) == 3 and type(item[2]) is int and 0 < item[2] < 1 << 32 else 0
            run = (
                plain_run(item[0], stream, record.rank)
                if kind == PLAIN_RUN
                else _plain_lines(item[0], stream, record.rank, number, left_out)
            )
            yield run
            number += run.count if number else 0
            continue
        bar = bool(kind) and kind != QUIET
        # Ours are short; those of a stranger's capture need not be.
        found = read_text(
            item[0][: 2 * MAX_LINE_CHARS],
            stream,
            record.rank,
            bar=bar,
            number=number,
            line=QuietLine if kind in _QUIET else LogLine,
        )
        for fact in found:
            if type(fact) is QuietLine:
                quiet.append(fact)
            yield fact
        number += 1 if number and not bar else 0
    yield from _quiet_runs(quiet)


_ABOVE = 16  # more than anybody keeps of what stands above an error
_QUIET = (QUIET, QUIET_BAR)
_IN_QUIET_RUNS = (QUIET, QUIET_BAR, PLAIN_RUN)


def _quiet_runs(lines: Sequence[QuietLine]) -> Iterator[QuietLines]:
    """One of each rank."""
    of: dict[tuple[int | None, str], list[QuietLine]] = {}
    for line in lines:
        of.setdefault((line.rank, line.stream), []).append(line)
    for (rank, stream), own in of.items():
        last = itertools.islice((line.text for line in reversed(own) if not line.bar), _ABOVE)
        yield QuietLines(rank, stream, tuple(own), tuple(last)[::-1])


def plain_run(text: str, stream: str, rank: int | None) -> NcclPlainLines:
    """The fact of an item marked PLAIN_RUN."""
    return NcclPlainLines(
        rank, stream, text.count("\n") + 1, tuple(text.rsplit("\n", _LAST_LINES)[-_LAST_LINES:]), text
    )


def _plain_lines(text: str, stream: str, rank: int | None, number: int, left_out: int) -> PlainLines:
    count = text.count("\n") + 1
    last = text.rsplit("\n", _LAST_LINES)[-_LAST_LINES:]
    bare = tuple(without_outer(line[: 2 * MAX_LINE_CHARS]) for line in last)
    return PlainLines(rank, stream, count + left_out, bare, text, number)
