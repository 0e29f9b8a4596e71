"""The directory of one run, and how other commands find the runs that live: `run.json` in a known place."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.launch import output_file, runs
from diag.launch.past.folders import FACTS, FACTS_SCHEMA, PAST, RUN_ID
from diag.launch.runs import SCHEMA
from diag.text.errors import DiagError
from diag.text.units import format_bytes

# A run directory on a disk with less than this is no help: the next candidate is tried.
MIN_FREE_BYTES = 64 << 20
_KEEP_RUNS = 20
# Of so many more what is told of them later: some kB each.
_KEEP_PAST = 1000
_OF_THE_PAST = ("run.json", "findings.jsonl", "ended.json", FACTS)
# ours: a hub has written its run.json after a second, on a crowded machine after a minute
_LOADED_SECONDS = 3600.0
# A bundle holds the whole journal (256 MiB at most), and an alert may ask for one each hour for weeks.
_KEEP_BUNDLES, _KEEP_BUNDLE_BYTES = 20, 1 << 30


def roots(configured: Path | None) -> list[Path]:
    """Where run directories may be made, best first. A configured place comes alone at the front."""
    return [Path(place) for place in runs.places(str(configured) if configured else None)]


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
                if place := _of_anybody(root):
                    _make_own(place)
                _check_above(root)
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                if root.stat().st_uid != os.getuid() and not (configured and root == roots(configured)[0]):
                    problems.append(f"{root}: belongs to another user")  # such as the HOME that sudo left
                    continue
                free = shutil.disk_usage(root).free
                if free < MIN_FREE_BYTES:
                    problems.append(f"{root}: only {format_bytes(free)} free")
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
            except DiagError as error:
                problems.append(str(error))
                continue
            _forget_old(root)
            return cls(path, run_id), problems
        raise DiagError(
            "no run directory can be made: " + "; ".join(problems),
            hint="give a writable place with --run-root DIR or DIAG_RUN_ROOT",
        )

    def remove(self) -> None:
        """There was no run: CMD could not be started."""
        shutil.rmtree(self.path, ignore_errors=True)

    def publish(self, facts: dict[str, Any]) -> None:
        """Write run.json so that no reader ever sees half of it. A full disk is not the job's problem:
        ignored."""
        document = {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "hub_pid": os.getpid(),
            "host": socket.gethostname(),
            **facts,
        }
        self._write("run.json", document, indent=1)

    def remember(self, facts: dict[str, Any]) -> None:
        """Write facts.json, by which the run is compared with others; as `publish`."""
        self._write(FACTS, {"schema": FACTS_SCHEMA, **facts})

    def _write(self, name: str, document: dict[str, Any], indent: int | None = None) -> None:
        with contextlib.suppress(OSError):
            temporary = self.path / f".{name}"
            temporary.unlink(missing_ok=True)  # of a hub that was killed
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(document, file, indent=indent)
            temporary.replace(self.path / name)


def _of_anybody(root: Path) -> Path | None:
    """The folder of ours in a place where every user can make one of that name; None of a user's own or a
    configured place.

    >>> str(_of_anybody(Path(f"/tmp/diag-{os.getuid()}/runs"))) == f"/tmp/diag-{os.getuid()}"
    True
    """
    return root.parent if root.parent.name == f"diag-{os.getuid()}" else None


def _make_own(place: Path) -> None:
    """Make it, or see that it was made by this user and can be changed by no other: who owns it, or the
    target of a link in its place, could read what is kept below, and put something else there. Raises OSError
    and DiagError."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise DiagError(f"{place}: it is a link")
    if not stat.S_ISDIR(found.st_mode):
        raise DiagError(f"{place}: it is a file")
    if found.st_uid != os.getuid():
        raise DiagError(f"{place}: belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DiagError(f"{place}: others can write there")


def _check_above(root: Path) -> None:
    """What lies in a place of everybody (/tmp) must be this user's or that place's owner's, as the kernel has
    it for links and files (fs.protected_symlinks): a configured /tmp/diag-JOBID can be foreseen, too. Raises
    DiagError."""
    for path in (root, *root.parents[:-1]):
        with contextlib.suppress(OSError):  # not there yet: mkdir makes it, or says why not
            above = path.parent.stat()
            everybodys = above.st_mode & stat.S_ISVTX and above.st_mode & stat.S_IWOTH
            if everybodys and path.lstat().st_uid not in (os.getuid(), above.st_uid):
                raise DiagError(f"{path}: belongs to another user")


def forget_old_bundles(newest: Path) -> None:
    """Keep the newest bundles beside this one, which always stays: its path was just reported."""
    found = []
    for path in newest.parent.glob("dump-*.tar.gz"):
        with contextlib.suppress(OSError):  # another dump removed it
            facts = path.stat()
            found.append((path != newest, -facts.st_mtime_ns, path, facts.st_size))
    held = 0
    for number, (is_other, _, path, size) in enumerate(sorted(found)):
        held += size
        if is_other and (number >= _KEEP_BUNDLES or held > _KEEP_BUNDLE_BYTES):
            with contextlib.suppress(OSError):
                path.unlink()


def _forget_old(root: Path) -> None:
    """Keep the newest runs of this user whole, the one that begins now among them, but not the disk space that was
    kept ready for the output of those that have ended; of older ones what is told of them. Runs that live are never
    touched, nor those of another host that may."""
    found = sorted(
        (path for path in root.iterdir() if RUN_ID.fullmatch(path.name)),
        key=lambda path: path.name,
        reverse=True,
    )
    for number, path in enumerate(found):
        with contextlib.suppress(DiagError, OSError, KeyError, TypeError, ValueError, OverflowError):
            if path.is_symlink() or path.lstat().st_uid != os.getuid() or not is_over(path):
                continue
            if number >= _KEEP_RUNS:
                _lay_by(path)
            else:
                for log in path.glob("*.log"):
                    output_file.give_back_reserve(log)


def _lay_by(path: Path) -> None:
    """Keep of it what `diag runs` tells; what never had a run.json tells nothing. Raises OSError."""
    if not (path / "run.json").exists():
        shutil.rmtree(path)
        return
    for entry in [*path.iterdir()]:
        if entry.name not in _OF_THE_PAST:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    past = path.parent / PAST
    past.mkdir(mode=0o700, exist_ok=True)
    if past.is_symlink() or past.lstat().st_uid != os.getuid():  # in a place of several users
        shutil.rmtree(path)
        return
    path.rename(past / path.name)
    known = sorted(one for one in past.iterdir() if RUN_ID.fullmatch(one.name))
    for one in known[:-_KEEP_PAST]:
        if one.is_dir() and not one.is_symlink() and one.lstat().st_uid == os.getuid():
            shutil.rmtree(one)


def is_over(path: Path) -> bool:
    """Whether the directory is not needed any more: its hub has ended, and so has the job, which goes on when
    a hub is killed and writes into it."""
    try:
        run = runs.read_run(str(path), ours=True)
    except DiagError:
        if (path / "run.json").exists():
            return False  # another diag's
        # Of a hub that was killed while it loaded, or loads now. What its job has open for writing the kernel
        # knows.
        old = time.time() - path.lstat().st_mtime > _LOADED_SECONDS
        return old and all(output_file.has_no_writer(log) for log in path.glob("*.log"))
    if run.get("ended"):
        return True
    hub = runs.is_alive(int(run["hub_pid"]), run.get("hub_start_ticks"))
    return runs.is_ours(run) and not hub and not runs.is_alive(int(run["pid"]), run.get("pid_start_ticks"))
