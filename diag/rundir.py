"""The directory of one run, and how other commands find the runs that live: `run.json` in a known place."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.errors import DiagError

__all__ = ["MIN_FREE_BYTES", "RunDir", "live_runs", "roots"]

SCHEMA = "diag.run/1"
# A run directory on a disk with less than this is no help: the next candidate is tried.
MIN_FREE_BYTES = 64 << 20
_KEEP_RUNS = 20


def roots(configured: Path | None) -> list[Path]:
    """Where run directories may be made, best first. A configured place comes alone at the front."""
    user = os.getuid()
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - see below
    # Not tempfile.gettempdir(): it ends in the working directory, which is the user's.
    temporary = dict.fromkeys([os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp"])
    places = [Path(state) / "diag" / "runs", *(Path(folder) / f"diag-{user}" / "runs" for folder in temporary)]
    places = [place for place in places if place.is_absolute()]  # a user without a home: os.path leaves the tilde, Path raises
    # Ranks get it in their environment, and their working directory may be another.
    return ([Path(os.path.expanduser(configured)).absolute()] if configured else []) + places  # noqa: PTH111 - the same


@dataclass(slots=True)
class RunDir:
    """One run's files: run.json, journal-*.jsonl.gz, output logs, findings.jsonl, stacks/, nccl/, dumps/."""

    path: Path
    run_id: str

    @classmethod
    def create(cls, configured: Path | None) -> tuple[RunDir, list[str]]:
        """Make the directory in the first place that takes it. Returns it and what was wrong with the others.

        Raises DiagError when no place works; the caller then runs CMD without a journal.
        """
        problems: list[str] = []
        run_id = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        for root in roots(configured):
            try:
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                if root != roots(configured)[0] and root.stat().st_uid != os.getuid():
                    problems.append(f"{root}: belongs to another user")  # who made it in /tmp to read or change ours
                    continue
                free = shutil.disk_usage(root).free
                if free < MIN_FREE_BYTES:
                    problems.append(f"{root}: only {free >> 20} MiB free")
                    continue
                path = root / run_id
                path.mkdir(mode=0o700)
                for name in ("stacks", "nccl", "dumps"):
                    (path / name).mkdir()
                (path / ".write").write_bytes(b"x" * 4096)
                (path / ".write").unlink()
            except OSError as error:
                problems.append(f"{root}: {error.strerror or error}")
                continue
            _forget_old(root)
            return cls(path, run_id), problems
        raise DiagError("no run directory can be made: " + "; ".join(problems),
                        hint="give a writable place with --run-root DIR or DIAG_RUN_ROOT")

    def publish(self, facts: dict[str, Any]) -> None:
        """Write run.json so that no reader ever sees half of it. A full disk is not the job's problem: ignored."""
        document = {"schema": SCHEMA, "run_id": self.run_id, "hub_pid": os.getpid(), "host": socket.gethostname(), **facts}
        with contextlib.suppress(OSError):
            temporary = self.path / ".run.json"
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(document, file, indent=1)
            temporary.replace(self.path / "run.json")


def read_run(path: Path) -> dict[str, Any]:
    """run.json of a run directory. Raises DiagError that says what the directory is instead."""
    try:
        data = json.loads((path / "run.json").read_text())
    except FileNotFoundError:
        raise DiagError(f"{path} is no run directory of diag: it has no run.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DiagError(f"{path / 'run.json'} cannot be read: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise DiagError(f"{path} was written by another diag (schema {found!r}, this one reads {SCHEMA})",
                        hint="use the diag version that wrote it")
    return data


def live_runs(configured: Path | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Runs of this user whose hub still lives on this machine, newest first."""
    paths = {path.parent for root in roots(configured) for path in root.glob("*/run.json")}
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        with contextlib.suppress(DiagError, OSError, KeyError, TypeError, ValueError, OverflowError):
            if (path / "run.json").stat().st_uid != os.getuid():
                continue  # in a shared place: who asks it would talk to another user's program
            run = read_run(path)
            if not run.get("ended") and _is_ours(run) and _alive(int(run["hub_pid"]), run.get("hub_start_ticks")):
                yield path, run


def _is_ours(run: dict[str, Any]) -> bool:
    """Written on this host. A home directory is often shared by all nodes of a cluster, and pids are not."""
    return bool(run.get("host") == socket.gethostname())


def _alive(pid: int, start_ticks: int | None) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return fields[0] != "Z" and (not start_ticks or int(fields[19]) == start_ticks)


def _forget_old(root: Path) -> None:
    """Keep the newest runs of this user. Runs that live are never touched, nor those of another host that may."""
    runs = sorted((path.parent for path in root.glob("*/run.json")), reverse=True)
    for path in runs[_KEEP_RUNS:]:
        with contextlib.suppress(DiagError, OSError, KeyError, TypeError, ValueError, OverflowError):
            run = read_run(path)
            # The job goes on when its hub was killed, and writes into this directory.
            hub = _alive(int(run["hub_pid"]), run.get("hub_start_ticks"))
            if run.get("ended") or (_is_ours(run) and not hub and not _alive(int(run["pid"]), None)):
                shutil.rmtree(path)
