"""The journal of records on disk: written while the job runs, read back by replay, tolerant of a torn end.

A run directory holds `journal-000001.jsonl.gz` ...: gzip streams of one JSON record a line, flushed so that
they can be read while written. The first line of each segment is a header. `zcat` and `jq` read them as well
as we do.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from diag.model import Record
from diag.text.errors import DiagError

SCHEMA = "diag.journal/1"
_SUPPORTED = (SCHEMA,)
# zcat reads what was flushed at most this long ago.
_FLUSH_BYTES = 32 * 1024


class JournalWriter:
    """Appends records; never keeps more than `max_bytes` on disk: the first segment and the newest ones stay.

    An OSError (disk full, directory gone) ends the journal and is reported once by `write` returning the reason;
    diag goes on without.
    """

    def __init__(
        self,
        directory: Path,
        *,
        policy: str = "run",
        max_bytes: int = 256 << 20,
        segment_bytes: int = 16 << 20,
    ) -> None:
        """`policy`: the name of that by which the records are judged."""
        self.directory = directory
        self._policy = policy
        self.bytes_total = 0
        self.failed: str | None = None
        self._max = max_bytes
        self._segment_bytes = min(segment_bytes, max(1 << 16, max_bytes // 4))
        # those of the attempts before this one
        self._sizes = {
            int(path.name[8:14]): path.stat().st_size
            for path in segments(directory)
            if path.name[8:14].isdecimal()
        }
        self._number = max(self._sizes, default=0)
        self._file: IO[bytes] | None = None
        self._zip: Any = None
        self._in_segment = 0
        self._pending = 0

    def write(self, record: Record) -> str | None:
        """None when written; the reason at the moment when the journal has to stop; None ever after."""
        if self.failed is not None:
            return None
        try:
            if self._file is None or self._in_segment >= self._segment_bytes:
                self._next_segment()
            line = json.dumps(record.to_json(), ensure_ascii=False, separators=(",", ":"))
            self._put(line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            return self._stop(error)
        return self.flush() if self._pending >= _FLUSH_BYTES else None

    def flush(self) -> str | None:
        """Make all that was written readable by others; answers as `write`. Called about once a second by the
        hub."""
        if self._file is None or not self._pending:
            return None
        try:
            self._emit(self._zip.flush(zlib.Z_SYNC_FLUSH))
            self._file.flush()
            self._pending = 0
        except OSError as error:
            return self._stop(error)
        return None

    def close(self) -> None:
        if self._file is None:
            return
        try:
            self._emit(self._zip.flush(zlib.Z_FINISH))
            self._file.close()
        except OSError as error:
            self.failed = self.failed or f"{error.strerror or error}"
        self._file = None

    def _put(self, data: bytes) -> None:
        self._pending += len(data)
        self._emit(self._zip.compress(data))

    def _emit(self, data: bytes) -> None:
        assert self._file is not None
        if data:
            self._file.write(data)
            self._in_segment += len(data)
            self.bytes_total += len(data)
            self._sizes[self._number] = self._in_segment

    def _next_segment(self) -> None:
        self.close()
        if self.failed is not None:  # a network file system may report a full disk only now
            raise OSError(self.failed)
        self._number += 1
        path = self.directory / f"journal-{self._number:06d}.jsonl.gz"
        self._file = open(path, "xb")  # noqa: SIM115 - open for as long as the segment is written
        self._zip = zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: with a gzip header, so that zcat reads it
        self._in_segment = 0
        self._put(
            json.dumps({"schema": SCHEMA, "segment": self._number, "policy": self._policy}).encode() + b"\n"
        )
        self._drop_old()

    def _drop_old(self) -> None:
        """The first segment shows how the job started, the newest how it is: the middle goes first."""
        while sum(self._sizes.values()) + self._segment_bytes > self._max:
            old = sorted(self._sizes)[1:-1]
            if not old:
                return
            (self.directory / f"journal-{old[0]:06d}.jsonl.gz").unlink(missing_ok=True)
            del self._sizes[old[0]]

    def _stop(self, error: OSError) -> str:
        self.failed = f"{error.strerror or error}"
        try:
            if self._file is not None:
                self._file.close()
        except OSError:
            pass  # the disk that refused the write may refuse the close
        self._file = None
        return self.failed


@dataclass(slots=True)
class JournalNotes:
    """What the reader could not use."""

    torn: int = 0
    bad_lines: int = 0
    unended: bool = False  # the last segment was never closed: its writer was killed, or still writes


class JournalReader:
    """Reads a directory's segments in order. Skips and counts what is torn; refuses a schema it does not
    know."""

    # A line of a capture from a stranger cannot make us hold more than this in memory.
    MAX_LINE = 64 << 20

    def __init__(self, paths: list[Path], passed: Callable[[float], None] = lambda size: None) -> None:
        """`passed` is given how many bytes were read, as they lie on disk."""
        self.paths = paths
        self.notes = JournalNotes()
        self.policy = ""  # as the header says, once a record was read; journals of before have none
        self._passed = passed

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            with open(path, "rb") as file:
                yield from self.read(file, path.name)

    def read(self, file: IO[bytes], name: str) -> Iterator[Record]:
        first = True
        for line in self._lines(file):
            try:
                data = json.loads(line)
                if first:
                    first = False
                    if isinstance(data, dict) and "schema" in data:
                        self._check(data, name)
                        self.policy = self.policy or str(data.get("policy", ""))
                        continue
                yield Record.from_json(data)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
                self.notes.bad_lines += 1

    def _check(self, header: dict[str, Any], name: str) -> None:
        if header["schema"] not in _SUPPORTED:
            raise DiagError(
                f"{name} is of schema {header['schema']!r}; this diag reads {', '.join(_SUPPORTED)}",
                hint="replay it with the diag version that wrote it (see run.json)",
            )

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        unzip = zlib.decompressobj(31)
        rest = bytearray()  # of the line that has not ended
        over = False  # it is longer than any of ours: what is left of it is passed over
        self.notes.unended = False
        while True:
            chunk = file.read(1 << 16)
            self._passed(len(chunk))
            if not chunk:
                break
            self.notes.unended = True
            while chunk:
                try:
                    data = unzip.decompress(chunk, 1 << 22)  # a bomb is unpacked in pieces, not at once
                except zlib.error:
                    self.notes.torn += 1
                    return
                first, *others = data.split(b"\n")
                rest += b"" if over else first
                if others:
                    if not over:
                        yield bytes(rest)
                    yield from others[:-1]
                    rest, over = bytearray(others[-1]), False
                if len(rest) > self.MAX_LINE:
                    self.notes.bad_lines += 1
                    rest, over = bytearray(), True
                if unzip.eof:
                    chunk, unzip = unzip.unused_data, zlib.decompressobj(31)
                    self.notes.unended = bool(chunk)
                else:
                    chunk = unzip.unconsumed_tail
        if rest:
            self.notes.torn += 1  # written while we read, or the writer was killed: the line is incomplete


_SYNCED = b"\x00\x00\xff\xff"  # how Z_SYNC_FLUSH ends: RFC 1951, 3.2.4, an empty block that is stored
_LAST_BLOCK = b"\x03\x00"  # an empty one with the bit that says that no other follows
_EMPTY = zlib.compress(b"", 0, 31)
_MOST_TAIL = 1 << 20
_MOST_TRIES = 8  # packed data may look like the end of a flush


def whole(file: IO[bytes], size: int) -> tuple[int, bytes]:
    """How much of a segment's first `size` bytes to take, and what to put behind it, to have a whole gzip
    file.

    All of it and nothing where it was closed; else, while it is written or when its writer was killed, up to
    the last flush.
    """
    begin = max(0, size - _MOST_TAIL)
    file.seek(begin)
    tail = file.read(size - begin)
    if not tail.endswith(_SYNCED):
        unzip, _, _ = _unpacked(file, size)
        if unzip is not None and unzip.eof and not unzip.unused_data:
            return size, b""
    at = len(tail)
    for _ in range(_MOST_TRIES):
        at = tail.rfind(_SYNCED, 0, at)
        if at < 0:
            break
        flushed = begin + at + len(_SYNCED)
        unzip, checksum, length = _unpacked(file, flushed)
        trailer = _LAST_BLOCK + checksum.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")
        if unzip is not None and not unzip.eof and _closes(unzip, trailer):
            return flushed, trailer
    return (0, _EMPTY) if at < 0 and begin == 0 else (size, b"")


def _unpacked(file: IO[bytes], size: int) -> tuple[Any, int, int]:
    """What has unpacked the first `size` bytes (None where these are no gzip), the checksum and the length of
    what came out."""
    unzip, checksum, length = zlib.decompressobj(31), 0, 0
    file.seek(0)
    try:
        while size and (chunk := file.read(min(size, 1 << 18))):
            size -= len(chunk)
            while chunk:
                data = unzip.decompress(chunk, 1 << 22)
                checksum, length = zlib.crc32(data, checksum), length + len(data)
                chunk = unzip.unconsumed_tail
    except zlib.error:
        return None, 0, 0
    return unzip, checksum, length


def _closes(unzip: Any, trailer: bytes) -> bool:
    try:
        unzip.decompress(trailer)
    except zlib.error:
        return False
    return bool(unzip.eof)


def segments(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("journal-*.jsonl.gz") if path.is_file())
