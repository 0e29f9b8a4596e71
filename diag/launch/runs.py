"""Which runs of diag live on this machine: `run.json` in the known places, read with as few imports as can
be.

`diag dump` starts with this, and a person waits for it; `rundir` has the same with paths, and makes the
directories.
"""

from __future__ import annotations

import json
import os
import stat

from diag.text.errors import DiagError
from diag.text.units import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

SCHEMA = "diag.run/1"
_MOST_BYTES = 8 << 20  # ours are some kB; a folder that is replayed may hold anything under this name


def places(configured: str | None) -> list[str]:
    """Where run directories may be made, best first. A configured place comes alone at the front."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - see below
    # Not tempfile.gettempdir(): it ends in the working directory, which is the user's.
    temporary = dict.fromkeys([os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp"])
    found = [
        os.path.join(state, "diag", "runs"),
        *(os.path.join(place, f"diag-{os.getuid()}", "runs") for place in temporary),
    ]
    # a user without a home: os.path leaves the tilde, Path raises
    found = [place for place in found if place.startswith("/")]
    # Ranks get it in their environment, and their working directory may be another.
    return ([os.path.abspath(os.path.expanduser(configured))] if configured else []) + found  # noqa: PTH100, PTH111 - the same


def read_run(path: str, *, ours: bool = False) -> dict[str, Any]:
    """run.json of a run directory; with `ours`, one that this user wrote. Raises DiagError that says what the
    directory is instead."""
    file_name = os.path.join(path, "run.json")
    try:
        # No link, and no device or FIFO: reading those may never end.
        with open(
            os.open(file_name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8"
        ) as file:
            found = os.fstat(file.fileno())
            if ours and found.st_uid != os.getuid():
                raise DiagError(f"{path} is another user's")
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
                raise ValueError(f"not a file of at most {format_bytes(_MOST_BYTES)}")
            data = json.loads(file.read(_MOST_BYTES))
    except FileNotFoundError:
        raise DiagError(f"{path} is not a run directory: run.json is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DiagError(f"{file_name} cannot be read: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise DiagError(
            f"{path} was written by another version of diag (schema {schema!r}; this one reads {SCHEMA})",
            hint="use the diag version that wrote it",
        )
    return data


def live_in(roots: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs of this user below these places whose hub still lives on this machine, newest first."""
    for path in sorted(
        {path for root in roots for path in _runs_in(root)}, key=os.path.basename, reverse=True
    ):
        try:
            # in a shared place: who asks it would talk to another user's program
            run = read_run(path, ours=True)
            if (
                not run.get("ended")
                and is_ours(run)
                and is_alive(int(run["hub_pid"]), run.get("hub_start_ticks"))
            ):
                yield path, run
        except (DiagError, OSError, KeyError, TypeError, ValueError, OverflowError):
            continue


def _runs_in(root: str) -> list[str]:
    try:
        return [
            os.path.join(root, name)
            for name in os.listdir(root)
            if os.path.exists(os.path.join(root, name, "run.json"))  # noqa: PTH110
        ]
    except OSError:
        return []


def is_ours(run: dict[str, Any]) -> bool:
    """Written on this host. A home directory is often shared by all nodes of a cluster, and pids are not."""
    return bool(run.get("host") == os.uname().nodename)


def is_alive(pid: int, ticks: int | None) -> bool:
    """Whether the process lives that began then (None: any of this pid). A pid is given to another one after
    it has ended."""
    try:
        state, began = _stat(pid)
    except (OSError, IndexError, ValueError):
        return False
    return state != "Z" and (not ticks or began == ticks)


def start_ticks(pid: int | str) -> int | None:
    """When it began, in clock ticks since boot, which with the pid names a process for good; None when it has
    ended."""
    try:
        return _stat(pid)[1]
    except (OSError, IndexError, ValueError):
        return None


def _stat(pid: int | str) -> tuple[str, int]:
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], int(fields[19])
