"""Where a process keeps its interpreter: /proc/PID/maps and the symbols of the ELF file that is mapped there.

Only files are read here, through the process's own root (`/proc/PID/root`), so that a rank in a container is
found too.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.sources.host.job_files import JobFiles

# What the reader needs to know the place of. `Py_Version` is there from Python 3.11 on.
SYMBOLS = (
    "_PyRuntime", "Py_Version", "PyCode_Type", "PyUnicode_Type", "PyBytes_Type", "PyDict_Type", "PyModule_Type",
    "PyLong_Type",
)  # fmt: skip

_ENVIRON = ("environ", "__environ")  # the same in glibc and musl
_LIBC = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ [^\n]*?(/[^\n]*/(?:libc\.so\.6|libc-2[^/\n]*\.so|ld-musl-[^/\n]*))$", re.MULTILINE
)

_PAGE = mmap.PAGESIZE
# ours: libpython's .dynsym is 50 KB, .symtab of a static build with symbols some MB
_LARGEST_TABLE = 64 << 20
_MOST_FILES = 64
_LIBPYTHON = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [^\n]*?(/[^\n]*/libpython3[^/\n]*)$", re.MULTILINE)
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _DYNSYM, _LOAD = 2, 11, 1


class Unsupported(Exception):
    """This interpreter is not one that the reader knows; py-spy may."""


@dataclass(frozen=True, slots=True)
class _File:
    loads: tuple[tuple[int, int], ...]  # (offset in the file, virtual address), both floored to pages
    symbols: dict[str, int]


_files: dict[tuple[int, int, int, int, str], _File] = {}


def find_symbols(pid: int, proc: Path = Path("/proc")) -> dict[str, int]:
    """Address of each symbol of SYMBOLS that the interpreter of a process has.

    Raises Unsupported, or OSError when the process has ended or cannot be read.
    """
    folder = proc / str(pid)
    maps = (folder / "maps").read_bytes()
    tried = []
    for path in _candidates(folder, maps):
        try:
            found = _read(_open(path, pid, proc))
        except (OSError, ValueError, struct.error, IndexError, OverflowError) as error:
            tried.append(f"{path}: {error}")
            continue
        if "_PyRuntime" not in found.symbols:
            tried.append(f"{path}: no symbol _PyRuntime")
            continue
        bias = _bias(maps, path, found)
        return {name: address + bias for name, address in found.symbols.items()}
    raise Unsupported("; ".join(tried)[:500] or "no interpreter is mapped")


def find_environ(pid: int, proc: Path = Path("/proc")) -> int:
    """Address of the C library's `environ`: of the executable's copy of it, where it has one.

    Raises Unsupported, or OSError when the process has ended or cannot be read.
    """
    folder = proc / str(pid)
    maps = (folder / "maps").read_bytes()
    libraries = [os.fsdecode(match[1]) for match in _LIBC.finditer(maps)]
    for path in dict.fromkeys([os.readlink(folder / "exe"), *libraries]):
        try:
            found = _read(_open(path, pid, proc), _ENVIRON)
        except (ValueError, struct.error, IndexError, OverflowError) as error:
            raise Unsupported(f"{path}: {error}") from None
        if found.symbols:
            return next(iter(found.symbols.values())) + _bias(maps, path, found)
    raise Unsupported("no C library with an environ is mapped")


def _candidates(folder: Path, maps: bytes) -> Iterator[str]:
    """Paths in the maps: shared libpython, then the executable itself (static builds)."""
    for path in dict.fromkeys(match[1] for match in _LIBPYTHON.finditer(maps)):
        yield os.fsdecode(path)
    yield os.readlink(folder / "exe")


def _open(path: str, pid: int, proc: Path) -> int:
    if path == os.readlink(proc / str(pid) / "exe"):
        # what it runs, whatever has that name by now
        return os.open(proc / str(pid) / "exe", os.O_RDONLY | os.O_CLOEXEC)
    with JobFiles(pid, proc) as files:
        return files.open_file(path)


def _bias(maps: bytes, path: str, file: _File) -> int:
    """How far the file was moved when it was mapped: 0 for executables that are not position independent."""
    ends = b" " + os.fsencode(path)
    for line in maps.splitlines():
        if line.endswith(ends):
            where, _, offset, _ = line.split(b" ", 3)
            for at, address in file.loads:
                if at == int(offset, 16):
                    return int(where.partition(b"-")[0], 16) - address
    raise Unsupported(f"{path} is not mapped as its headers say")


def _read(fd: int, names: tuple[str, ...] = SYMBOLS) -> _File:
    with open(fd, "rb") as file:
        facts = os.fstat(file.fileno())
        key = (facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size, names[0])
        known = _files.get(key)
        if known is None:
            known = _parse(file.fileno(), names)
            while len(_files) >= _MOST_FILES:
                _files.pop(next(iter(_files)), None)
            _files[key] = known
        return known


def _parse(fd: int, wanted: tuple[str, ...]) -> _File:
    """Raises ValueError or struct.error for what is no 64-bit little-endian ELF file."""
    head = os.pread(fd, 64, 0)
    if head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    segments_at, sections_at = struct.unpack_from("<QQ", head, 32)
    segment_size, segments, section_size, sections = struct.unpack_from("<HHHH", head, 54)
    if segment_size != _SEGMENT.size or section_size != _SECTION.size:
        raise ValueError("headers of an unknown size")
    loads = []
    for kind, _, offset, address, *_ in _SEGMENT.iter_unpack(
        _exactly(fd, segments * segment_size, segments_at)
    ):
        if kind == _LOAD:
            loads.append((offset - offset % _PAGE, address - address % _PAGE))
    headers = list(_SECTION.iter_unpack(_exactly(fd, sections * section_size, sections_at)))
    symbols: dict[str, int] = {}
    for kind in (_DYNSYM, _SYMTAB):
        for header in headers:
            if header[1] == kind and wanted[0] not in symbols:
                names = headers[header[6]]
                table, texts = _exactly(fd, header[5], header[4]), _exactly(fd, names[5], names[4])
                symbols |= _symbols(table, texts, wanted)
    return _File(tuple(loads), symbols)


def _exactly(fd: int, size: int, at: int) -> bytes:
    if not 0 <= size <= _LARGEST_TABLE:
        raise ValueError("a table of absurd size")
    data = os.pread(fd, size, at)
    if len(data) != size:
        raise ValueError("the file is cut off")
    return data


def _symbols(table: bytes, names: bytes, wanted: tuple[str, ...]) -> dict[str, int]:
    """By searching for the few names, and then for the entries that point at them: 1 ms less than walking
    thousands."""
    found = {}
    for name in wanted:
        at = names.find(b"\0" + name.encode() + b"\0") + 1
        if not at:
            continue
        entry, place = struct.pack("<I", at), -1
        while (place := table.find(entry, place + 1)) >= 0:
            if place % _SYMBOL.size == 0:
                _, _, _, section, value, _ = _SYMBOL.unpack_from(table, place)
                if section and value:
                    found[name] = value
                break
    return found
