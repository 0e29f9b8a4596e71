"""Plain logs as the records of one job: their lines in the order of their times, and behind them what follows from
how they end."""

from __future__ import annotations

import gzip
import io
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from diag.engine.importers.attempts import Attempts, Before
from diag.engine.importers.files import rank_of_log
from diag.engine.importers.line_heads import LineHeads
from diag.engine.importers.log_outcome import LogOutcome
from diag.engine.importers.log_reader import log_records, merged, parted
from diag.engine.importers.notebook import NotebookErrors
from diag.engine.importers.policy import LOG
from diag.engine.importers.pyspy_text import holds_dump, processes_of_text
from diag.engine.importers.readable import Head, why_unusable
from diag.engine.importers.times import year_of
from diag.model import Record
from diag.model.observations import Moment, Observation
from diag.sources.gpu.cuda_core import is_core_dump
from diag.sources.host import kmsg
from diag.sources.host import run as run_source
from diag.sources.logs import output
from diag.sources.parsers import PARSERS
from diag.sources.stacks import pyspy
from diag.text.errors import DiagError
from diag.text.progress_line import Progress
from diag.text.words import has_any

# Lines of the kernel, as dmesg (with -T as well), journalctl and /var/log write them, or what is pasted of them:
#   [ 1042.117302] NVRM: Xid (PCI:0000:3b:00): 79, ...      Nov 20 22:48:19 gpu-17 kernel: Out of memory: Killed process ...
_OF_KERNEL = re.compile(
    r"^(?:.{0,100}\bkernel: ?|\[ {0,8}\d{1,9}\.\d{6}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\]"
    r"|NVRM: Xid |.{0,40}\b(?:Memory cgroup o|O)ut of memory: Killed process )"
)

_STAMPED = re.compile(
    r"^\[(?: {0,8}\d{1,9}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\]", re.MULTILINE
)
_LARGEST_PASTE = 8 << 20  # 8 ranks of 200 threads: 2 MB
_TAIL_BYTES = 1 << 16  # in which the year is looked for


class LogImport:
    """`parsers` give the facts of the record that was given last without a second reading: they are needed for the
    outcome."""

    policy = LOG.name

    def __init__(self, records: Iterable[Record], *, one_log: bool = True) -> None:
        self.parsers = {**PARSERS, output.SOURCE: self._parse}
        self._records = records
        self._attempts = Attempts() if one_log else None
        self._heads: dict[str, tuple[NotebookErrors, LineHeads]] = {}  # by stream
        self._last: tuple[Record | None, list[Observation]] = (None, [])

    def __iter__(self) -> Iterator[Record]:
        outcome, now, earlier = LogOutcome(), 0.0, 0
        for before, record in self._of_kernel_apart():
            now = max(now, record.at)
            if record.source == pyspy.SOURCE:  # beside lines, not of them
                yield record
                continue
            if before is not None and outcome.may_begin_anew:
                outcome, earlier = LogOutcome(), earlier + 1
                yield replace(run_source.began_anew(earlier, before.lines, before.ended_with), at=now)
            self._last = record, list(output.parse(record))
            for fact in self._last[1]:
                if type(fact) is Moment:
                    now = max(now, fact.at)
                else:
                    outcome.observe(now, fact)
            yield record
            if record.source == output.SOURCE and (lines := _of_kernel(record)):
                yield Record(kmsg.SOURCE, {"lines": lines}, at=record.at)
        if self._last[0] is not None:  # of nothing there is no outcome
            yield from outcome.records(now)

    def _of_kernel_apart(self) -> Iterator[tuple[Before | None, Record]]:
        """Lines of the kernel are a record of their own, behind those of their moment."""
        for before, record in self._pieces():
            if record.source == output.SOURCE and "times" in record.payload and _of_kernel(record):
                for number, part in enumerate(parted(record)):
                    yield before if number == 0 else None, part
            else:
                yield before, record

    def _pieces(self) -> Iterator[tuple[Before | None, Record]]:
        for record in map(self._bare, self._records):
            if self._attempts is None or record.source != output.SOURCE:
                yield None, record
            else:
                yield from self._attempts.pieces(record)

    def _bare(self, record: Record) -> Record:
        """Without what stands before the lines of its tracebacks, or around them."""
        if record.source != output.SOURCE:
            return record
        notebook, heads = self._heads.setdefault(record.payload["stream"], (NotebookErrors(), LineHeads()))
        lines = heads.bare(notebook.bare(record.payload["lines"]))
        return replace(record, payload={**record.payload, "lines": lines})

    def _parse(self, record: Record) -> Iterator[Observation]:
        return iter(self._last[1]) if record is self._last[0] else output.parse(record)


def _of_kernel(record: Record) -> list[str]:
    """The lines of the kernel in it: evidence of their own, whatever log they are in."""
    texts = (str(item[0]) for item in record.payload["lines"])
    lines = (line for text in texts if _may_be_of_kernel(text) for line in text.split("\n"))
    return [line for line in lines if _OF_KERNEL.match(line)]


def _may_be_of_kernel(text: str) -> bool:
    marks = ("kernel:", "NVRM: Xid ", "ut of memory: Killed process ")
    brackets = text[:1] == "[" or "\n[" in text
    return has_any(text, marks) or (brackets and _STAMPED.search(text) is not None)


def read_logs(
    paths: list[Path], notes: list[str], progress: Progress, literals: tuple[str, ...] = ()
) -> LogImport:
    """All of them as one job, each rank's own by its name."""
    ranks = [rank_of_log(path) if len(paths) > 1 else None for path in paths]
    return LogImport(
        merged(
            read_log(path, notes, progress, rank, alone=len(paths) == 1, literals=literals)
            for path, rank in zip(paths, ranks, strict=True)
        ),
        one_log=len(paths) == 1,
    )


def read_text(text: str, notes: list[str]) -> LogImport:
    """Lines that were pasted, as a log that holds nothing else."""
    return LogImport(
        _lines(
            io.BytesIO(text.encode("utf-8", "replace")),
            "paste",
            0.0,
            None,
            notes,
            Progress(io.StringIO()),
        )
    )


def read_log(
    path: Path,
    notes: list[str],
    progress: Progress,
    rank: int | None = None,
    *,
    alone: bool = False,
    literals: tuple[str, ...] = (),
) -> Iterator[Record]:
    """The lines of one log; of `-`, of stdin. Without times of their own they are where the file was written among other
    files, and without a date where it is `alone`. `literals`: words of rules. Raises OSError, and DiagError for a GPU core dump."""
    if str(path) == "-":
        yield from _lines(
            sys.stdin.buffer, "stdin", 0.0, rank, notes, progress, literals=literals, together=alone
        )
        return
    with open(path, "rb") as file:
        if file.seekable():
            if is_core_dump(file.read(64)):
                raise DiagError(
                    f"{path} is a core dump of a GPU, and no log",
                    exit_code=2,
                    hint="put it into a folder with the ranks' stacks, and give the folder",
                )
            file.seek(0)
        status = path.stat()
        tail = b""
        regular = stat.S_ISREG(status.st_mode)
        progress.add(file, status.st_size if regular else 0)
        packed = path.name.endswith(".gz")
        if alone and regular and not packed:
            file.seek(max(0, status.st_size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
            file.seek(0)
        text = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else cast(IO[bytes], file)
        used = False
        try:
            written = status.st_mtime if regular and not alone else 0.0
            for record in _lines(text, str(path), written, rank, notes, progress, tail, literals, alone):
                used = True
                yield record
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            notes.append(f"{path} is damaged: {error}" + ("; what came before is used" if used else ""))


def _lines(  # noqa: PLR0917 - of this module alone
    file: IO[bytes],
    path: str,
    at: float,
    rank: int | None,
    notes: list[str],
    progress: Progress,
    tail: bytes = b"",
    literals: tuple[str, ...] = (),
    together: bool = True,
) -> Iterator[Record]:
    """`at`: when it was written, 0.0 where that says nothing of its lines; `tail`: its last bytes, where they are known."""
    begun = Head(file)
    unusable = why_unusable(begun.head)
    if unusable:
        notes.append(f"{path} {unusable}")
        return
    name, year = Path(path).name, None if at else year_of(begun.head + b"\n" + tail)
    if not holds_dump(begun.head.decode("utf-8", "replace")):
        yield from log_records(
            begun, name, at, rank, year=year, read=progress.read, literals=literals, together=together
        )
        return
    processes, more = processes_of_text(begun.whole(_LARGEST_PASTE).decode("utf-8", "replace"))
    if more:
        for record in log_records(begun, name, at, rank, year=year, read=progress.read, literals=literals):
            at = record.at
            yield record
    for process in processes:
        yield Record(pyspy.SOURCE, {"pid": process.pid, "stdout": process.threads}, at=at)
