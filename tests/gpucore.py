"""GPU core dumps built from the tables of NVIDIA's cudacoredump.h, as small as a test needs them, and real
ones."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["ALL_REDUCE", "Grid", "captured", "core_dump"]

ALL_REDUCE = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"

_USER = 0x80000000
_SECTION = struct.Struct("<IIQQQQIIQQ")


class Grid(NamedTuple):
    name: str
    grid: tuple[int, int, int] = (4, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    blocks: int = 4
    status: int = 2  # active


class _Part(NamedTuple):
    name: str
    kind: int
    data: bytes
    link: int = 0
    info: int = 0
    entry_size: int = 0
    address: int = 0


def _elf(parts: Sequence[_Part], kind: int, *, counted_in_first: bool = False) -> bytes:
    names, body, rows = b"\0", b"", []
    for part in (*parts, _Part(".shstrtab", 3, b"")):
        data = part.data if part.name != ".shstrtab" else names + b".shstrtab\0"
        rows.append(
            (
                len(names),
                part.kind,
                0,
                part.address,
                64 + len(body),
                len(data),
                part.link,
                part.info,
                1,
                part.entry_size,
            )
        )
        names += part.name.encode() + b"\0"
        body += data
    number = len(rows) + 1
    first = (0, 0, 0, 0, 0, number if counted_in_first else 0, number - 1 if counted_in_first else 0, 0, 0, 0)
    told = (0, 0xFFFF) if counted_in_first else (number, number - 1)
    head = b"\x7fELF\x02\x01\x01\x33" + bytes(8)
    head += struct.pack("<HHIQQQIHHHHHH", kind, 0xBE, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, *told)
    return head + body + b"".join(_SECTION.pack(*row) for row in (first, *rows))


def _module(names: Sequence[str], code: int, *, absolute: bool) -> bytes:
    """A relocated cubin: one section of code for each function, 0x100 bytes, from `code` on."""
    strings, symbols, parts = b"\0", bytes(24), []
    for number, name in enumerate(names):
        address = code + 0x100 * number
        symbols += struct.pack("<IBBHQQ", len(strings), 2, 0, number + 1, address if absolute else 0, 0x100)
        strings += name.encode() + b"\0"
        parts.append(_Part(f".text.{name}", 1, b"\x11" * 16, address=address))
    parts += [_Part(".strtab", 3, strings), _Part(".symtab", 2, symbols, len(names) + 1, 1, 24)]
    return _elf(parts, 2)


def core_dump(
    *grids: Grid, entry_size: int = 136, absolute: bool = False, counted_in_first: bool = False
) -> bytes:
    """One device with one context; every grid's function is in its only module. `absolute`: symbols have
    addresses."""
    names = list(dict.fromkeys(grid.name for grid in grids)) or ["unused"]
    code, module = 0x7F00_0000_1000, 0xABC
    table = blocks = b""
    for number, grid in enumerate(grids):
        entry = code + 0x100 * names.index(grid.name)
        row = struct.pack("<7Q4I", number + 1, 0xC0, 0xF0, entry, module, 0, 528, 2, 0, grid.status, 32)
        row += struct.pack("<8I", *grid.grid, *grid.block, 0, 77)
        table += row.ljust(entry_size, b"\0")
        blocks += b"".join(
            struct.pack("<QIIII", number + 1, block, 0, 0, 0).ljust(56, b"\0") for block in range(grid.blocks)
        )
    return _elf(
        [
            _Part(".cudbg.devtbl", _USER + 9, bytes(88), 0, 0, 88),
            _Part(".cudbg.ctxtbl.dev0", _USER + 10, bytes(40), 1, 0, 40),
            _Part(".cudbg.gridtbl.dev0", _USER + 12, table, 1, 0, entry_size),
            _Part(".cudbg.modtbl.dev0.ctx0", _USER + 16, struct.pack("<Q", module), 2, 0, 8),
            _Part(".cudbg.relfimg.dev0.ctx0", _USER + 7, _module(names, code, absolute=absolute), 4, 0, 0),
            _Part(".cudbg.smtbl.dev0", _USER + 11, bytes(48), 1, 0, 48),
            _Part(".cudbg.ctatbl.dev0.sm0", _USER + 13, blocks, 6, 0, 56),
        ],
        4,
        counted_in_first=counted_in_first,
    )


def captured(name: str) -> bytes:
    """One of tests/captures/gpu, of an H200."""
    return gzip.decompress((Path(__file__).parent / "captures" / "gpu" / f"{name}.cudacore.gz").read_bytes())
