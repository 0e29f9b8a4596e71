"""Text that a rank writes into files of its own, beside what it prints: a log of its logger, numbers as JSON lines. And
that of a process that it waits for, which may print into a file.

They are found among its open files, so no path is guessed; what it opens anew for each line is not seen. Of each only
the last lines are read, as the rank's own user, and none that is no text.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diag.launch.launchers.secrets import hidden_in_lines
from diag.model import Payload, Record
from diag.model.observations import LastLines, LinesWritten, Observation, Unparsed
from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import colon_fields, read_text

SOURCE = "written"

_MOST_FILES = 4  # ours: of a rank; who writes lines has one or two such files
_MOST_DESCRIPTORS = 4096
_TAIL_BYTES = 16 * 1024
_LAST_LINES = 20
_MOST_LINE_CHARS = 2000
_HEAD_BYTES = 4096
_PRINTED = ("0", "1", "2")


@dataclass(slots=True)
class _File:
    number: str  # of the descriptor
    name: str
    size: int  # when it was looked at last
    written_at: float = field(default=0.0)


class WrittenReader:
    """`find` looks for such files, `sample` reads what came since."""

    def __init__(self, pid: int, proc: Path = Path("/proc"), *, beside: int = 0) -> None:
        """`beside`: a rank that waits for this process, and whose output is known."""
        self.pid = pid
        self._beside = beside
        self._proc = proc
        self._base = f"{proc}/{pid}"
        self._files: dict[tuple[int, int], _File] = {}
        self._no_text: set[tuple[int, int]] = set()
        self._job: JobFiles | None = None

    def find(self) -> None:
        """Raises OSError where the process is gone, or may not be looked at."""
        of = self._beside or self.pid
        printed = {found for number in _PRINTED if (found := self._stat(number, of)) is not None}
        keep = {(found.st_dev, found.st_ino) for found in printed}
        for number in os.listdir(f"{self._base}/fd")[:_MOST_DESCRIPTORS]:
            if len(self._files) >= _MOST_FILES:
                return
            # a link of /proc costs no look at the file's own file system
            target = self._link(number)
            if (
                (number in _PRINTED and not self._beside)
                or not target.startswith("/")
                or target.startswith(("/dev/", "/proc/", "/sys/"))
            ):
                continue
            if not self._appends(number) or (found := self._stat(number)) is None:
                continue
            key = (found.st_dev, found.st_ino)
            if key in keep or key in self._files or key in self._no_text or not stat.S_ISREG(found.st_mode):
                continue
            if not found.st_size:
                continue  # its text is yet to come
            if self._is_text(number):
                self._files[key] = _File(number, Path(target).name, found.st_size)
            elif len(self._no_text) < _MOST_DESCRIPTORS:
                self._no_text.add(key)

    def sample(self) -> Payload:
        """The last lines of each file that grew since the last time."""
        grown: list[Payload] = []
        for key, file in list(self._files.items()):
            found = self._stat(file.number)
            if found is None or (found.st_dev, found.st_ino) != key:
                del self._files[key]  # it was closed
                continue
            before, file.size = file.size, found.st_size
            if found.st_size > before:
                lines = self._lines(file.number, max(before, found.st_size - _TAIL_BYTES), found.st_size)
                if lines:
                    grown.append({"file": file.name, "lines": lines, "written": found.st_mtime})
        return {"pid": self.pid, "files": grown}

    def last(self) -> Payload:
        """The last lines of each file as it is now, also of one to which nothing was added since it was found."""
        rows: list[Payload] = []
        for key, file in self._files.items():
            found = self._stat(file.number)
            if found is not None and (found.st_dev, found.st_ino) == key:
                lines = self._lines(file.number, max(0, found.st_size - _TAIL_BYTES), found.st_size)
                rows.append({"file": file.name, "lines": lines, "written": found.st_mtime})
        other = {"other": True} if self._beside else {}
        return {"pid": self.pid, "files": [], "last": [row for row in rows if row["lines"]], **other}

    # -- one descriptor -----------------------------------------------------------------------------------

    def _stat(self, number: str, pid: int = 0) -> os.stat_result | None:
        base = f"{self._proc}/{pid}" if pid else self._base
        try:
            return os.stat(f"{base}/fd/{number}")  # noqa: PTH116 - of what the descriptor is
        except OSError:
            return None

    def _link(self, number: str) -> str:
        try:
            return os.readlink(f"{self._base}/fd/{number}")
        except OSError:
            return ""

    def _appends(self, number: str) -> bool:
        """Opened for writing and nothing else: a database is read too."""
        flags = colon_fields(read_text(f"{self._base}/fdinfo/{number}")).get("flags", "0")
        return int(flags, 8) & os.O_ACCMODE == os.O_WRONLY

    def _read(self, number: str, begin: int, end: int) -> bytes:
        if self._job is None:
            self._job = JobFiles(self.pid, self._proc)
        fd = self._job.open_printed(int(number))
        try:
            return os.pread(fd, end - begin, begin)
        finally:
            os.close(fd)

    def _is_text(self, number: str) -> bool:
        try:
            head = self._read(number, 0, _HEAD_BYTES)
        except OSError:
            return False  # not the rank's to read either
        try:
            text = head.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(head) - 4:  # the last character may be cut
                return False
            text = head[: error.start].decode("utf-8")
        return "\n" in text and "\0" not in text

    def _lines(self, number: str, begin: int, end: int) -> list[str]:
        try:
            data = self._read(number, begin, end)
        except OSError:
            return []
        whole = data.decode("utf-8", "backslashreplace").rpartition("\n")[0].split("\n")
        return [hidden_in_lines(line[:_MOST_LINE_CHARS]) for line in whole[-_LAST_LINES:] if line.strip()]


def parse(record: Record) -> Iterator[Observation]:
    """Payload: {"pid": int, "files": [{"file": str, "lines": [str, ...], "written": float}, ...], "last": the same?,
    "other"?: it is no rank's}."""
    payload = record.payload
    files = payload.get("files") if isinstance(payload, dict) else None
    last = payload.get("last", []) if isinstance(payload, dict) else None
    if not isinstance(files, list) or not isinstance(last, list):
        yield Unparsed(record.rank, SOURCE, "no list of files", repr(payload)[:200])
        return
    for kind, rows in ((LinesWritten, files), (LastLines, last)):
        for file in rows[:_MOST_FILES]:
            lines = file.get("lines") if isinstance(file, dict) else None
            written = file.get("written") if isinstance(file, dict) else None
            if not isinstance(lines, list) or not isinstance(written, (int, float)):
                yield Unparsed(record.rank, SOURCE, "a file without lines or time", repr(file)[:200])
                continue
            texts = tuple(str(line)[:_MOST_LINE_CHARS] for line in lines[-_LAST_LINES:])
            pid = (
                payload["pid"] if payload.get("other") is True and isinstance(payload.get("pid"), int) else 0
            )
            yield kind(record.rank, str(file.get("file", ""))[:300], texts, float(written), pid)
