"""The journal in a bundle of `diag dump`, streamed out of the archive: no path of it ever touches the disk."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from diag.engine.journal import JournalReader
from diag.model import Record
from diag.text.errors import DiagError
from diag.text.progress_line import Progress

ENDINGS = (".tar", ".tar.gz", ".tgz")
_MOST_MEMBERS = 10_000
# Of an archive at once: tarfile takes a header of any length (a name of 10 GB) into memory.
_LARGEST_READ = 4 << 20
_DAMAGES = (tarfile.TarError, EOFError, OSError, zlib.error)


def read_bundle(path: Path, reader: JournalReader, notes: list[str], progress: Progress) -> Iterator[Record]:
    """Raises DiagError for what is none."""
    members: list[tarfile.TarInfo] = []
    try:
        with _open(path) as tar:
            for count, member in enumerate(tar):
                if count > _MOST_MEMBERS:
                    raise DiagError(
                        f"{path} has more than {_MOST_MEMBERS} members: this is not a diag bundle"
                    )
                name = member.name
                if member.isreg() and name.startswith("journal-") and name.endswith(".jsonl.gz"):
                    members.append(member)
            if not members:
                raise DiagError(f"{path} is an archive without a journal: not a diag bundle", exit_code=2)
            progress.expect(sum(member.size for member in members))
            for member in sorted(members, key=lambda member: member.name):
                file = tar.extractfile(member)
                if file is not None:
                    yield from reader.read(file, member.name)
    except (*_DAMAGES, ValueError) as error:
        if not members:
            raise DiagError(f"{path} is not a diag bundle, or is damaged: {error}") from None
        notes.append(f"{path} is damaged: {error}; what came before is used")


def is_archive(path: Path) -> bool:
    try:
        with _open(path) as tar:
            # A log that logrotate's copytruncate cut begins with zeros, which are an empty archive.
            return tar.next() is not None or path.name.endswith(ENDINGS)
    except _DAMAGES:
        return False


def _open(path: Path) -> tarfile.TarFile:
    """A .tar or .tar.gz. Of the other packings diag makes none."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    opened = cast(IO[bytes], gzip.open(path)) if packed else open(path, "rb")  # noqa: SIM115 - the archive closes it
    return tarfile.open(fileobj=cast(Any, _Careful(opened)), mode="r:")


class _Careful(io.RawIOBase):
    """Refuses to read more at once than any member of ours needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_READ:
            raise tarfile.ReadError(f"a part of {size} bytes, which no diag bundle has")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()
