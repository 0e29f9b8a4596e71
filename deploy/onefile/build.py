"""Builds `diag.pyz`: diag with all that it needs in one file, for machines that have only Python.

It is a PEX: the first start unpacks it below ~/.cache/pex as a virtual environment, which later starts use. One file serves
each Python and machine that is named, as long as wheels of all dependencies exist for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.tags import compatible_tags, cpython_tags

GLIBC = (2, 28)  # of Debian 10, Ubuntu 20.04, RHEL 8 and all since: google-re2 has no wheel for an older one
_LEGACY = ((17, "manylinux2014"), (12, "manylinux2010"), (5, "manylinux1"))


def platforms(machine: str) -> list[str]:
    """Newest first, as pip asks for them: manylinux_2_28_x86_64 ... manylinux1_x86_64."""
    found = []
    for minor in range(GLIBC[1], 4, -1):
        found.append(f"manylinux_{GLIBC[0]}_{minor}_{machine}")
        found += [f"{name}_{machine}" for known, name in _LEGACY if known == minor]
    return found


def complete_platform(python: tuple[int, int], machine: str) -> dict[str, Any]:
    """What PEX has to know of an interpreter that is not here: its tags, and the variables of PEP 508."""
    number, name = f"{python[0]}.{python[1]}", f"cp{python[0]}{python[1]}"
    names = platforms(machine)
    tags = [*cpython_tags(python, [name], names), *compatible_tags(python, name, names)]
    return {
        "compatible_tags": [str(tag) for tag in tags],
        "marker_environment": {
            "implementation_name": "cpython", "implementation_version": f"{number}.0", "os_name": "posix",
            "platform_machine": machine, "platform_python_implementation": "CPython", "platform_system": "Linux",
            "platform_release": "", "platform_version": "", "python_full_version": f"{number}.0",
            "python_version": number, "sys_platform": "linux",
        },
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default=".", help="diag's checkout or wheel (%(default)s)")
    parser.add_argument("-o", "--output", default="dist/diag.pyz", help="%(default)s")
    parser.add_argument(
        "--python", nargs="+", default=["3.10", "3.11", "3.12", "3.13", "3.14"], metavar="VERSION"
    )
    parser.add_argument("--machine", nargs="+", default=["x86_64", "aarch64"])
    asked = parser.parse_args(words)
    Path(asked.output).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        given: list[str] = []
        for version in asked.python:
            for machine in asked.machine:
                path = Path(folder) / f"{version}-{machine}.json"
                major, _, minor = version.partition(".")
                path.write_text(json.dumps(complete_platform((int(major), int(minor)), machine)))
                given += ["--complete-platform", str(path)]
        pex = [sys.executable, "-m", "pex", asked.what, "--script", "diag", "--output-file", asked.output]
        how = ["--venv", "prepend", "--sh-boot", "--no-build", "--use-pip-config"]
        return subprocess.run([*pex, *how, *given], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
