"""Which Python, torch and NCCL a rank runs, by the files that it has mapped. Nothing is imported and nothing
is asked."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from diag.sources.collectives.nccl_library import wheel_version
from diag.sources.host.job_files import JobFiles

# .../lib/libpython3.11.so.1.0, .../site-packages/torch/lib/libtorch_cpu.so, .../nvidia/nccl/lib/libnccl.so.2
_TORCH = re.compile(rb"(/[^\n]*/torch)/lib/libtorch[^/\n]*\.so")
_NCCL = re.compile(rb"(/[^\n]*)/nvidia/nccl/lib/libnccl\.so")
_PYTHON = re.compile(rb"/lib(?:python|/python)(3\.\d+)")
#   __version__ = '2.13.0+cpu'                                                   torch/version.py, torch 2.13
_SAID = re.compile(rb"^__version__ = ['\"]([\w.+-]{1,64})['\"]", re.MULTILINE)
_MOST_BYTES = 8 << 20


def versions(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """Of {"python", "torch", "nccl"} those that are known. Raises OSError when the process is gone or
    denied."""
    folder = f"{proc}/{pid}"
    with open(f"{folder}/maps", "rb") as file:
        maps = file.read(_MOST_BYTES)
    found: dict[str, str] = {}
    if python := _PYTHON.search(maps):
        found["python"] = python[1].decode()
    with JobFiles(pid, proc) as files:
        if torch := _TORCH.search(maps):
            with contextlib.suppress(OSError):  # a build that was moved, or a package without the file
                if said := _SAID.search(files.read(f"{os.fsdecode(torch[1])}/version.py", 1 << 16)):
                    found["torch"] = said[1].decode()
        if nccl := _NCCL.search(maps):
            with contextlib.suppress(OSError):
                if version := wheel_version(files, os.fsdecode(nccl[1])):
                    found["nccl"] = version
    return found
