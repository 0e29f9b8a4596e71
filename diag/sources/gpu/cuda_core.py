"""Which kernels a GPU core dump shows: the tables of the file alone, without cuda-gdb.

The format is NVIDIA's public one (cudacoredump.h of cuda-gdb; driver r346 and later): a 64-bit ELF file whose
sections are tables of devices, modules, grids and blocks. Memory, registers and threads are passed over: a
rank in NCCL takes 30 ms.

It is read, never mapped: the driver may still write it, or somebody cut it off, and a page that is gone is
SIGBUS.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

_USER = 0x80000000  # SHT_LOUSER; numbers of CudbgSectionHeaderTypes
_RELOCATED_IMAGE, _DEVICES, _GRIDS, _BLOCKS, _MODULES = (_USER + number for number in (7, 9, 12, 13, 16))
_SYMBOLS = 2
_FUNCTION = 2  # STT_FUNC
_ELF_CUDA = (0x33, 4, 0xBE)  # ELFOSABI_CUDA, ET_CORE, EM_CUDA
_WORD, _TABLE = struct.Struct("<Q"), struct.Struct("<HHH")
_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_GRID = struct.Struct("<QQQQQQQIIIIIIIIII")  # CudbgGridTableEntry up to blockDimZ, the same in all drivers
_TERMINATED = 4  # CUDBGGridStatus
_MOST_SECTIONS = 4 << 20  # of a GPU full of threads: 270,000 of them have three sections each
_MOST_GRIDS = 512
_LONGEST_NAME = 4096
_BLOCK, _MOST_BLOCKS = 256 << 10, 64  # 16 MiB are held at most


class NoCoreDump(Exception):
    """The file is not a core dump, or not a complete one."""


class _Section(NamedTuple):
    number: int
    kind: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


class _Data:
    """The file, read in blocks. What is missing, or has been cut off meanwhile, reads as empty."""

    def __init__(self, file: int) -> None:
        self._file, self._size = file, os.fstat(file).st_size
        self._block = lru_cache(_MOST_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return self._size

    def read(self, at: int, size: int) -> bytes:
        """Fewer bytes at the end of the file."""
        number, inside = divmod(at, _BLOCK)
        parts, left = [], inside + size
        while left > 0:
            parts.append(self._block(number)[:left])
            if len(parts[-1]) < _BLOCK:
                break
            left, number = left - _BLOCK, number + 1
        return b"".join(parts)[inside:]

    def _read_block(self, number: int) -> bytes:
        return os.pread(self._file, _BLOCK, number * _BLOCK) if 0 <= number * _BLOCK < self._size else b""

    def unpack(self, form: struct.Struct, at: int) -> tuple[Any, ...]:
        """Raises struct.error where the file ends before."""
        number, inside = divmod(at, _BLOCK)
        if inside + form.size <= _BLOCK:
            return form.unpack_from(self._block(number), inside)
        return form.unpack(self.read(at, form.size))


def is_core_dump(head: bytes) -> bool:
    """Whether a file that begins so (64 bytes do) is a core dump of a GPU."""
    return (
        len(head) >= 64
        and head.startswith(b"\x7fELF\x02")
        and (head[7], *struct.unpack_from("<HH", head, 16)) == _ELF_CUDA
    )


def kernels(path: Path) -> list[dict[str, Any]]:
    """One row for each grid on a GPU: {"name", "device", "grid", "block", "blocks": of it on the GPU now,
    "status"}.

    The name is as the compiler wrote it (mangled); empty where no module has the function. Raises NoCoreDump,
    OSError.
    """
    with path.open("rb") as file:
        data = _Data(file.fileno())
        try:
            if not len(data):
                raise NoCoreDump("the file is empty")
            if not is_core_dump(data.read(0, 64)):
                raise NoCoreDump("it is not a core dump of a GPU")
            return _rows(data)
        except (struct.error, IndexError, OverflowError) as error:
            raise NoCoreDump(f"it is cut off or damaged: {error}") from None


def _rows(data: _Data) -> list[dict[str, Any]]:
    by_kind: dict[int, list[_Section]] = {}
    for section in _sections(data, 0, len(data)):
        if section.kind in (_RELOCATED_IMAGE, _GRIDS, _BLOCKS, _MODULES):
            by_kind.setdefault(section.kind, []).append(section)
    if any(sum(section.size for section in sections) > len(data) for sections in by_kind.values()):
        raise NoCoreDump("it is damaged: its sections are larger than the file")
    handles = {
        (table.number, row): data.unpack(_WORD, at)[0]
        for table in by_kind.get(_MODULES, ())
        for row, at in _entries(table, 8)
    }
    images: dict[int, list[_Section]] = {}
    for image in by_kind.get(_RELOCATED_IMAGE, ()):
        images.setdefault(handles.get((image.link, image.info), 0), []).append(image)
    resident = Counter(
        data.unpack(_WORD, at)[0] for table in by_kind.get(_BLOCKS, ()) for _, at in _entries(table, 24)
    )
    rows: list[dict[str, Any]] = []
    names: dict[tuple[int, int], str] = {}
    for table in by_kind.get(_GRIDS, ()):
        for _, at in _entries(table, _GRID.size):
            grid, _, _, entry, module, _, _, _, _, status, _, *sizes = data.unpack(_GRID, at)
            if status == _TERMINATED or len(rows) >= _MOST_GRIDS:
                continue
            if (module, entry) not in names:
                names[module, entry] = _function_at(data, entry, images.get(module, []))
            rows.append(
                {
                    "name": names[module, entry],
                    "device": table.info,
                    "grid": sizes[:3],
                    "block": sizes[3:],
                    "blocks": resident[grid],
                    "status": status,
                }
            )
    return rows


def _entries(table: _Section, least: int) -> Iterator[tuple[int, int]]:
    """Row number and place of each; rows of newer drivers are longer than those that we know."""
    step = table.entry_size
    if step < least:
        return
    for row in range(table.size // step):
        yield row, table.offset + row * step


def _sections(data: _Data, base: int, size: int) -> Iterator[_Section]:
    """Of the ELF file that begins at `base`, with offsets from the file's own beginning."""
    if data.read(base, 5) != b"\x7fELF\x02":
        raise NoCoreDump("it is not a 64-bit ELF file")
    (start,) = data.unpack(_WORD, base + 0x28)
    entry, number, _ = data.unpack(_TABLE, base + 0x3A)
    if entry < _HEADER.size or start + entry > size:
        raise NoCoreDump("it is cut off: it has no table of sections")
    # more than 65,279 of them: the first says how many
    number = number or data.unpack(_HEADER, base + start)[5]
    if number > _MOST_SECTIONS or start + entry * number > size:
        raise NoCoreDump(f"it is cut off or damaged: {number} sections")
    for index in range(number):
        _, kind, _, address, offset, length, link, info, _, entry_size = data.unpack(
            _HEADER, base + start + index * entry
        )
        yield _Section(index, kind, address, base + offset, length, link, info, entry_size)


def _function_at(data: _Data, entry: int, images: list[_Section]) -> str:
    """The name of the function that begins at this address, in the modules as they were loaded."""
    for image in images if entry else ():
        try:
            inner = list(_sections(data, image.offset, image.size))
        except NoCoreDump:
            continue
        symbols = [table for table in inner if table.kind == _SYMBOLS]
        if sum(table.size for table in symbols) > image.size:
            continue
        for table in symbols:
            if table.link >= len(inner):
                continue
            for _, at in _entries(table, _SYMBOL.size):
                name, what, _, where, value, _ = data.unpack(_SYMBOL, at)
                if (
                    what & 15 == _FUNCTION
                    and where < len(inner)
                    and entry in (value, inner[where].address + value)
                ):
                    begin = inner[table.link].offset + name
                    written, end, _ = data.read(begin, _LONGEST_NAME).partition(b"\0")
                    return written.decode("utf-8", "replace") if end else ""
    return ""
