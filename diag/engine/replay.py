"""Evidence on disk into an engine: run directories, bundles and plain logs. Untrusted input: read, never run."""

from __future__ import annotations

import gzip
import io
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from diag.detectors import make_detectors
from diag.detectors.cluster import make_job_detectors
from diag.engine.engine import Engine
from diag.engine.importers import folder_records, holds_evidence
from diag.engine.importers.files import leads_out, rank_of_log
from diag.engine.importers.line_index import LinePlaces
from diag.engine.importers.log_outcome import LogEnds
from diag.engine.importers.log_reader import log_records, merged
from diag.engine.importers.readable import Head, why_unusable
from diag.engine.journal import JournalReader, segments
from diag.launch.rundir import read_run
from diag.model import Change, Record
from diag.sources.digest import SOURCE as DIGESTS
from diag.sources.gpu.cuda_core import is_core_dump
from diag.sources.parsers import PARSERS
from diag.text.errors import DiagError
from diag.text.progress_line import Progress

if TYPE_CHECKING:
    from diag.detectors.rules.ruleset import RuleSet

__all__ = ["records_of", "replay", "replay_records", "when_read_again"]

_LOG_CHECK_SECONDS = 10.0  # of told time: what a log tells of is over
_MOST_MEMBERS = 10_000
_LARGEST_READ = (
    4 << 20
)  # of an archive at once: tarfile takes a header of any length (a name of 10 GB) into memory


def replay_records(
    records: Iterable[Record], ends: LogEnds | None = None, rules: RuleSet | None = None
) -> tuple[Engine, list[Change]]:
    """Feed records in the order given. The engine, and all that changed. `ends`: the records are plain logs,
    which it judges. `rules` in place of those that come with diag."""
    records, digests = _of_job_hub(records)
    engine = Engine(PARSERS, make_job_detectors() if digests else make_detectors(rules))
    if ends is not None:
        places = LinePlaces()
        engine = Engine(PARSERS, [*make_detectors(rules), ends, places], _LOG_CHECK_SECONDS)
        engine.place_of = places.find
    changes: list[Change] = []
    for record in records:
        changes += engine.feed(record)
    if ends is not None:
        engine.log = ends.to_json(engine.job)
        for record in ends.records(engine.now):
            changes += engine.feed(record)
    changes += engine.finish()
    return engine, changes


def _of_job_hub(records: Iterable[Record]) -> tuple[Iterable[Record], bool]:
    """Whether they are the journal of a job hub (`job/` in its run directory): digests of all nodes, judged
    by its detectors."""
    flow = iter(records)
    first = next(flow, None)
    return ((), False) if first is None else (chain([first], flow), first.source == DIGESTS)


def replay(
    paths: list[Path], progress: Progress | None = None, rules: RuleSet | None = None
) -> tuple[Engine, list[Change], list[str]]:
    """Replay everything given as one job. Returns the engine, the changes and notes on what could not be
    used.

    Raises DiagError for a path that is nothing diag can read.
    """
    notes: list[str] = []
    unended: list[Path] = []
    if paths and all(map(_is_log, paths)):
        engine, changes = replay_records(_logs(paths, notes, progress), LogEnds(), rules)
        return engine, changes, notes
    engine, changes = replay_records(_records(paths, notes, unended, progress), rules=rules)
    if not engine.records:
        raise _nothing(paths, notes)
    engine.job.breaks_off = bool(unended) and engine.job.returncode is None
    return engine, changes, notes


def records_of(paths: list[Path], notes: list[str], progress: Progress | None = None) -> Iterator[Record]:
    """The records that `replay` judges, in its order. Raises DiagError as it does."""
    if paths and all(map(_is_log, paths)):
        return _logs(paths, notes, progress)
    return _records(paths, notes, progress=progress)


def when_read_again(path: Path) -> str:
    """Why it cannot be read a second time; empty where it can."""
    if str(path) == "-":
        return "stdin can be read once only"
    return "" if path.is_dir() or path.is_file() else f"{path} can be read once only"


def _is_log(path: Path) -> bool:
    """Whether it is a plain log or stdin, and no evidence of another kind. What does not exist is told by
    whoever opens it."""
    if str(path) == "-" or (path.exists() and not path.is_dir() and not path.is_file()):
        return True
    if not path.is_file() or path.name.endswith((".tar", ".tar.gz", ".tgz", ".jsonl.gz")):
        return False
    return not _is_archive(path)


def _logs(paths: list[Path], notes: list[str], progress: Progress | None) -> Iterator[Record]:
    is_told = False
    try:
        for record in merged([_plain(path, notes, progress, len(paths) > 1) for path in paths]):
            is_told = True
            yield record
    except OSError as error:
        raise DiagError(f"{error.filename or paths[0]} cannot be read: {error.strerror or error}") from None
    if not is_told:
        raise _nothing(paths, notes)


def _nothing(paths: list[Path], notes: list[str]) -> DiagError:
    """All that was given tells nothing: that is no healthy job."""
    why = "; ".join(notes) or f"{paths[0]} holds nothing that can be read"
    return DiagError(
        why,
        exit_code=2,
        hint="give what the job printed as text, a run directory, a bundle of `diag dump`, or a "
        "folder of evidence",
    )


def _plain(path: Path, notes: list[str], progress: Progress | None, several: bool) -> Iterator[Record]:
    """One log, of which the name tells the rank where there are several."""
    rank = rank_of_log(path) if several else None
    if str(path) == "-":
        yield from _log(sys.stdin.buffer, "stdin", 0.0, rank, progress, notes)
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
        at = status.st_mtime if stat.S_ISREG(status.st_mode) else 0.0
        if progress is not None:
            progress.add(file, status.st_size if stat.S_ISREG(status.st_mode) else 0)
        is_used = False
        try:
            packed = path.name.endswith(".gz")
            text = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else cast(IO[bytes], file)
            for record in _log(text, str(path), at, rank, progress, notes):
                is_used = True
                yield record
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            notes.append(f"{path} is damaged: {error}" + ("; what came before is used" if is_used else ""))


def _log(  # noqa: PLR0917
    file: IO[bytes], path: str, at: float, rank: int | None, progress: Progress | None, notes: list[str]
) -> Iterator[Record]:
    begun = Head(file)
    unusable = why_unusable(begun.head)
    if unusable:
        notes.append(f"{path} {unusable}")
        return
    yield from log_records(
        begun, Path(path).name, at, rank, progress.read if progress is not None else lambda size: None
    )


def _records(
    paths: list[Path], notes: list[str], unended: list[Path] | None = None, progress: Progress | None = None
) -> Iterator[Record]:
    """`unended`: those are put here whose journal nobody closed. That of a dump never was."""
    progress = progress or Progress(io.StringIO())  # no terminal
    for path in paths:
        try:
            yield from _one(path, notes, [] if unended is None else unended, progress)
        except OSError as error:
            raise DiagError(f"{path} cannot be read: {error.strerror or error}") from None


def _one(path: Path, notes: list[str], unended: list[Path], progress: Progress) -> Iterator[Record]:
    if path.is_dir():
        yield from _directory(path, notes, unended, progress)
    elif str(path) != "-" and not path.exists():
        from diag.text.suggest import address_of, file_beside

        if address := address_of(path):
            raise DiagError(
                f"{address} is an address, and diag downloads nothing",
                exit_code=2,
                hint=f"a log: curl -sSL '{address}' | diag replay -; else save it, and give the file",
            )
        raise DiagError(f"{path} does not exist", hint=file_beside(path), exit_code=2)
    elif _is_log(path):  # beside evidence of other kinds; of a pipe as well, which can be read once only
        yield from _plain(path, notes, progress, False)
    elif path.name.endswith((".tar", ".tar.gz", ".tgz")) or _is_archive(path):
        yield from _bundle(path, notes, progress)
    elif path.name.endswith(".jsonl.gz"):
        yield from _journal([path], notes, unended, progress)


def _directory(path: Path, notes: list[str], unended: list[Path], progress: Progress) -> Iterator[Record]:
    found = [segment for segment in segments(path) if not leads_out(segment, path)]
    if (path / "run.json").exists():
        read_run(path)  # says so when another diag wrote it
    if found:
        yield from _journal(found, notes, unended, progress)
        return
    if not holds_evidence(path):
        raise DiagError(
            f"{path} holds nothing that diag can replay: no journal, no logs, no stacks, no recorder files",
            hint="give a run directory, a bundle of `diag dump`, log files, or a folder of evidence",
            exit_code=2,
        )
    yield from folder_records(path, notes, progress)


def _journal(
    paths: list[Path], notes: list[str], unended: list[Path], progress: Progress
) -> Iterator[Record]:
    reader = JournalReader(paths, progress.passed)
    progress.expect(sum(path.stat().st_size for path in paths))
    yield from reader
    if reader.notes.unended:
        unended.append(reader.paths[-1])
    _note(reader, notes)


def _note(reader: JournalReader, notes: list[str]) -> None:
    if reader.notes.torn:
        notes.append(
            "the journal ends in the middle of a record (it was still written, or its writer was killed)"
        )
    if reader.notes.bad_lines:
        notes.append(f"{reader.notes.bad_lines} lines of the journal are no records and were left out")


def _bundle(path: Path, notes: list[str], progress: Progress) -> Iterator[Record]:
    """Members are streamed by name pattern: no path of the archive ever touches the disk."""
    reader = JournalReader([], progress.passed)
    names: list[tarfile.TarInfo] = []
    try:
        with _open_archive(path) as tar:
            for count, member in enumerate(tar):
                if count > _MOST_MEMBERS:
                    raise DiagError(
                        f"{path} has more than {_MOST_MEMBERS} members: this is no bundle of diag"
                    )
                if (
                    member.isreg()
                    and member.name.startswith("journal-")
                    and member.name.endswith(".jsonl.gz")
                ):
                    names.append(member)
            if not names:
                raise DiagError(f"{path} is an archive without a journal: no bundle of diag", exit_code=2)
            progress.expect(sum(member.size for member in names))
            for member in sorted(names, key=lambda member: member.name):
                file = tar.extractfile(member)
                if file is not None:
                    yield from reader.read(file, member.name)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        if not names:
            raise DiagError(f"{path} is no bundle of diag, or damaged: {error}") from None
        notes.append(f"{path} is damaged: {error}; what came before is used")
    _note(reader, notes)


def _open_archive(path: Path) -> tarfile.TarFile:
    """A .tar or .tar.gz. Of the other packings diag makes none."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    opened = cast(IO[bytes], gzip.open(path)) if packed else open(path, "rb")  # noqa: SIM115 - the archive closes it
    return tarfile.open(fileobj=cast(Any, _Careful(opened)), mode="r:")


def _is_archive(path: Path) -> bool:
    try:
        with _open_archive(path) as tar:
            if tar.next() is None and not path.name.endswith((".tar", ".tar.gz", ".tgz")):
                return False  # a log that logrotate's copytruncate cut begins with zeros, which are an empty archive
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        return False
    return True


class _Careful(io.RawIOBase):
    """Refuses to read more at once than any member of ours needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_READ:
            raise tarfile.ReadError(f"a part of {size} bytes, which no bundle of diag has")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()
