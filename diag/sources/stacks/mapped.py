"""Files of data that a process has mapped, and whether for itself alone: what it writes into a private mapping (copy on
write) reaches no file, and nobody else.

Read of /proc/PID/maps, and of /proc/PID/pagemap whether a page of such a mapping is a copy by now. Libraries are private
mappings too, and have a part that can be executed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from diag.model.observations import Mapped
from diag.sources.host.process_tree import PROC, read_text
from diag.sources.payload import from_mapping, mapping

MOST = 8
_MOST_PAGES = 16384  # of a mapping that are looked at, the first
_LONGEST = 120
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61  # Documentation/admin-guide/mm/pagemap.rst
_NO_DATA = ("/dev/", "/memfd:", "/SYSV", "/anon_hugepage", "/proc/", "/sys/", "/usr/")  # or the system's own


def read(pid: int, hidden: Callable[[str], str], proc: str | os.PathLike[str] = PROC) -> list[dict[str, Any]]:
    """Rows of `Mapped`, of mappings that are shared, or private and writable. `hidden` takes secrets out of a path."""
    base = f"{os.fspath(proc)}/{pid}"
    # 7f5d0a600000-7f5d0a604000 rw-p 00000000 08:01 131 /job/out/weights.bin
    lines = [line.split(maxsplit=5) for line in read_text(f"{base}/maps").splitlines() if "/" in line]
    rows = [line for line in lines if len(line) == 6 and line[5].startswith("/")]
    code = {(line[3], line[4]) for line in rows if "x" in line[1]}
    found: dict[str, dict[str, Any]] = {}
    for span, rights, _, device, inode, path in rows:
        private = rights[3] == "p"
        if (
            (device, inode) in code
            or inode == "0"
            or path.startswith(_NO_DATA)
            or (private and rights[1] != "w")
        ):
            continue
        if path not in found and len(found) == MOST:
            break
        written = private and _has_copies(f"{base}/pagemap", span)
        known = found.setdefault(
            path, {"path": hidden(path)[-_LONGEST:], "private": private, "written": False}
        )
        known["private"], known["written"] = known["private"] and private, known["written"] or written
    return list(found.values())


def _has_copies(pagemap: str, span: str) -> bool:
    first, _, last = span.partition("-")
    try:
        size = os.sysconf("SC_PAGE_SIZE")
        at, pages = int(first, 16) // size, (int(last, 16) - int(first, 16)) // size
        with open(pagemap, "rb", buffering=0) as file:
            file.seek(8 * at)
            data = file.read(8 * min(pages, _MOST_PAGES)) or b""
    except (OSError, ValueError):
        return False
    entries = (one for (one,) in struct.iter_unpack("=Q", data[: len(data) // 8 * 8]))
    return any(one & _SWAPPED or (one & _PRESENT and not one & _OF_FILE) for one in entries)


def mapped_of(rows: Iterable[Any]) -> Iterator[Mapped]:
    for row in list(rows)[:MOST]:
        yield from_mapping(Mapped, mapping(row))
