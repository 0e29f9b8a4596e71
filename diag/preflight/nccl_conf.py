"""The files in which NCCL takes variables in addition to the environment: ~/.nccl.conf or NCCL_CONF_FILE, then
/etc/nccl.conf.

As src/misc/param.cc reads them: a line is NAME=VALUE, taken as it is (no quotes, no blanks cut off), `#` at
its very start is a comment, other lines are passed over (seen so with NCCL 2.27.5 and 2.32.3); what is set
already is not overwritten, so the environment wins, then the user's file.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from diag.knowledge.nccl_filters import parse_conf

_MOST_BYTES = 1 << 20


def read(
    environment: Mapping[str, str], root: Path = Path("/"), home: Path | None = None
) -> list[tuple[Path, dict[str, str]]]:
    """The files that are there, the stronger first, with what they hold. NCCL before 2.23 does not know
    NCCL_CONF_FILE."""
    files = []
    if environment.get("NCCL_CONF_FILE"):
        files.append(Path(environment["NCCL_CONF_FILE"]))
    else:
        folder = home if home is not None else _home()
        if folder is not None:
            files.append(folder / ".nccl.conf")
    files.append(root / "etc/nccl.conf")
    found = []
    for path in files:
        try:
            if not path.is_file():  # a FIFO of that name must not hold us up
                continue
            with path.open("rb") as file:
                found.append((path, parse_conf(file.read(_MOST_BYTES).decode(errors="replace"))))
        except OSError:
            pass  # NCCL does not report a file that it cannot open, either
    return found


def effective(
    environment: Mapping[str, str], files: list[tuple[Path, dict[str, str]]]
) -> tuple[dict[str, str], dict[str, Path]]:
    """The environment as NCCL sees it, and the file that each variable which is not in the real one came
    from."""
    merged, origins = dict(environment), {}
    for path, values in files:
        for name, value in values.items():
            if name not in merged:
                merged[name] = value
                origins[name] = path
    return merged, origins


def _home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)  # as NCCL: not $HOME
    except KeyError:
        return None
