"""Which Python, torch and NCCL a rank runs, by the files that it has mapped. Nothing is imported, run or asked."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path, PurePath

from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import PROC, read_raw

# .../lib/libpython3.11.so.1.0, .../site-packages/torch/lib/libtorch_cpu.so, .../nvidia/nccl/lib/libnccl.so.2
_TORCH = re.compile(rb"(/[^\n]*/torch)/lib/libtorch[^/\n]*\.so")
_NCCL = re.compile(rb"(/[^\n]*)/nvidia/nccl/lib/libnccl\.so")
PYTHON = re.compile(rb"/lib(?:python|/python)(3\.\d+)")
#   __version__ = '2.13.0+cpu'                                                   torch/version.py, torch 2.13
_VERSION = re.compile(rb"^__version__ = ['\"]([\w.+-]{1,64})['\"]", re.MULTILINE)
_MOST_BYTES = 8 << 20


def versions(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """Of {"python", "torch", "nccl"} those that are known. Raises OSError when the process is gone or
    denied."""
    folder = f"{proc}/{pid}"
    with open(f"{folder}/maps", "rb") as file:
        maps = file.read(_MOST_BYTES)
    found: dict[str, str] = {}
    if python := PYTHON.search(maps):
        found["python"] = python[1].decode()
    with JobFiles(pid, proc) as files:
        if torch := _TORCH.search(maps):
            with contextlib.suppress(OSError):  # a build that was moved, or a package without the file
                if version := _VERSION.search(files.read(f"{os.fsdecode(torch[1])}/version.py", 1 << 16)):
                    found["torch"] = version[1].decode()
        if nccl := _NCCL.search(maps):
            with contextlib.suppress(OSError):
                if wheel := wheel_version(files, os.fsdecode(nccl[1])):
                    found["nccl"] = wheel
    return found


# --- which NCCL, also where it is not from a wheel

# torch 2.11.0+cu130 from its wheel, H200, 2026-11-20:
#   7f..-7f.. r--p 00000000 00:2e 1234 /usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2
# Debian's package has /usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9.
_LIBRARY = re.compile(rb"\s(/[^\n]*/libnccl\.so(?:\.\d{1,4})*)(?: \(deleted\))?$", re.MULTILINE)
_NAME = re.compile(r"libnccl\.so\.(\d{1,4}\.\d{1,4}\.\d{1,6})$")
_WHEEL = re.compile(r"nvidia_nccl_cu\d{1,3}-(\d{1,4}\.\d{1,4}\.\d{1,6})[\w.+]*\.dist-info$")
#   $ strings libnccl.so.2 | grep '^NCCL version'
#   NCCL version 2.28.9+cuda13.0
_WORDS = re.compile(rb"NCCL version (\d{1,4}\.\d{1,4}\.\d{1,6})")

_CHUNK = 1 << 20
_OVERLAP = 64
_LARGEST = 1 << 30  # NCCL 2.28 has 400 MB


def library_of(pid: int, proc: Path = PROC) -> str | None:
    """The path of libnccl as the process sees it; empty when it has loaded none, None when that may not be
    seen."""
    maps = read_raw(f"{proc}/{pid}/maps")
    if maps is None:
        return None
    found = _LIBRARY.search(maps)
    return found[1].decode("utf-8", "replace") if found else ""


def version_of(pid: int, library: str, proc: Path = PROC) -> str:
    """ "2.28.9", from the file's name, the wheel beside it, or the words in it; empty when none of these has it."""
    named = _NAME.search(library)
    if named is not None:
        return named[1]
    seen = PurePath(library)
    try:
        with JobFiles(pid, proc) as files:
            of_wheel = seen.parent.parts[-3:] == ("nvidia", "nccl", "lib")
            if of_wheel and (version := wheel_version(files, str(seen.parents[3]))):
                return version
            return _version_in(files.open_file(library))
    except (OSError, ValueError):
        return ""


def wheel_version(files: JobFiles, site_packages: str) -> str:
    """Of NVIDIA's wheel there; empty where there is none, or several. Raises OSError."""
    wheels = {found[1] for name in files.names(site_packages) if (found := _WHEEL.match(name)) is not None}
    return wheels.pop() if len(wheels) == 1 else ""


def _version_in(fd: int) -> str:
    """In small reads: the others of diag go on meanwhile."""
    with open(fd, "rb") as file:
        rest = b""
        for _ in range(_LARGEST // _CHUNK):
            data = file.read(_CHUNK)
            if not data:
                break
            found = _WORDS.search(rest + data)
            # else its digits may go on in the next read
            if found is not None and found.end() < len(rest) + len(data):
                return found[1].decode()
            rest = (rest + data)[-_OVERLAP:]
        found = _WORDS.search(rest)
        return found[1].decode() if found else ""
