"""Folders of installed packages that are no site-packages: what `pip install --target` filled, and PYTHONPATH names.

pip leaves a `NAME.dist-info` with the list of what it installed (RECORD) beside the packages; a checkout, and what is
installed from one to be edited, has none.
"""

from __future__ import annotations

import functools
from pathlib import Path

from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import read_text

_MOST_FOLDERS, _MOST_PACKAGES = 8, 400
_RECORD_BYTES = 64 << 10  # its first lines name what it has at the top


class Packages:
    def __init__(self, pid: int, proc: Path) -> None:
        variables = read_text(f"{proc}/{pid}/environ").split("\0")
        paths = next((one[11:] for one in variables if one.startswith("PYTHONPATH=")), "")
        self._tops = _installed(pid, proc, paths) if paths else frozenset()

    def shortened(self, file: str) -> str:
        """What an import would name, as of a file of site-packages, whose folder says where it belongs: of what was
        installed in one of these folders."""
        for folder, top in self._tops:
            if file.startswith(f"{folder}/{top}/") or file == f"{folder}/{top}":
                return file[len(folder) + 1 :]
        return file


@functools.lru_cache(maxsize=64)
def _installed(pid: int, proc: Path, paths: str) -> frozenset[tuple[str, str]]:
    """Folder and name of each package at the top of one of these."""
    folders = [path.rstrip("/") for path in paths.split(":") if path.startswith("/")]
    try:
        with JobFiles(pid, proc) as files:
            return frozenset(
                (folder, top) for folder in folders[:_MOST_FOLDERS] for top in _tops(files, folder)
            )
    except OSError:
        return frozenset()


def _tops(files: JobFiles, folder: str) -> set[str]:
    tops: set[str] = set()
    try:
        names = [name for name in files.names(folder) if name.endswith(".dist-info")][:_MOST_PACKAGES]
    except OSError:
        return tops
    for name in names:
        try:
            record = files.read(f"{folder}/{name}/RECORD", _RECORD_BYTES).decode(errors="replace")
        except OSError:
            continue
        # grpc/_channel.py,sha256=...,91242
        tops |= {line.partition(",")[0].partition("/")[0] for line in record.splitlines()[:-1]}
    return {
        top for top in tops if top not in ("", "..", "__pycache__", "bin") and not top.endswith(".dist-info")
    }
