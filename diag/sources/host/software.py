"""What a rank's process runs on: Python, the installed packages beside its loaded libraries, kernel and GPU driver. By the
files that it has mapped and the names beside them; nothing is imported, run or asked."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from diag.model import Payload, Record
from diag.model.observations import Observation, SoftwareSeen
from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import PROC, read_raw
from diag.sources.host.versions import PYTHON
from diag.sources.payload import guarded, integer, mapping, word
from diag.text.errors import SourceUnavailable

SOURCE = "software"

# torch 2.13 from its wheel:
#   7f..-7f.. r-xp 00000000 fe:00 1234 /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so
_FOLDER = re.compile(rb"\s(/[^\n]*?/(?:site|dist)-packages)/")
#   torch-2.13.0+cpu.dist-info, flash_attn-2.8.3.dist-info (pip 24); PyYAML-6.0.egg-info (Debian 12)
_PACKAGE = re.compile(r"([A-Za-z0-9][\w.]{0,99})-(\d[\w.+!]{0,60})(?:-py[\d.]+)?\.(?:dist|egg)-info")
#   NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)
#   NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
_DRIVER = re.compile(rb"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)*)\s")
_SEPARATORS = re.compile(r"[-_.]+")
_MOST_FOLDERS = 4
_MOST_PACKAGES = 2000


def read(pid: int, proc: Path = PROC) -> Payload:
    """Raises SourceUnavailable where its memory map may not be read, or it is gone."""
    maps = read_raw(f"{proc}/{pid}/maps")
    if maps is None:
        raise SourceUnavailable(f"the memory map of process {pid} cannot be read")
    python = PYTHON.search(maps)
    driver = _DRIVER.search(read_raw(f"{proc}/driver/nvidia/version") or b"")
    folders = [*dict.fromkeys(found[1] for found in _FOLDER.finditer(maps))][:_MOST_FOLDERS]
    return {
        "pid": pid,
        "python": python[1].decode() if python else "",
        "kernel": os.uname().release,
        "driver": driver[1].decode() if driver else "",
        "packages": _packages(pid, folders, proc) if folders else None,
    }


def _packages(pid: int, folders: list[bytes], proc: Path) -> dict[str, str] | None:
    """Name, as pip writes it, to version: of a package in two folders both. None where no folder can be read."""
    found: dict[str, set[str]] = {}
    listed = False
    with contextlib.suppress(OSError), JobFiles(pid, proc) as files:
        for folder in folders:
            with contextlib.suppress(OSError):
                for name in files.names(os.fsdecode(folder)):
                    if package := _PACKAGE.fullmatch(name):
                        found.setdefault(normal(package[1]), set()).add(package[2])
                listed = True
    if not listed:
        return None
    return {name: " and ".join(sorted(found[name])) for name in sorted(found)[:_MOST_PACKAGES]}


def normal(name: str) -> str:
    """PEP 503.

    >>> normal("Flash_Attn"), normal("ruamel.yaml")
    ('flash-attn', 'ruamel-yaml')
    """
    return _SEPARATORS.sub("-", name).lower()


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    packages = payload["packages"]
    yield SoftwareSeen(
        record.rank,
        integer(payload["pid"]),
        word(payload["python"]),
        word(payload["kernel"]),
        word(payload["driver"]),
        None
        if packages is None
        else tuple(
            (word(name), word(version)) for name, version in [*mapping(packages).items()][:_MOST_PACKAGES]
        ),
    )
