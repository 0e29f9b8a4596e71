"""Which job `diag watch` is to watch: by pid, run directory or Slurm step."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.launch.launchers.nodes import JobNodes


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """The job's root process, its command line, and the signal by which its ranks dump their stacks (0: they
    were not started by diag)."""

    pid: int
    words: list[str]
    stack_signal: int = 0


def find_target(args: argparse.Namespace) -> WatchTarget | None:
    """None: what appears is to be watched. Raises DiagError where the job that was named is not there."""
    if args.slurm is not None:
        from diag.sources.host.slurm import find_step, root_of

        tasks = find_step(os.environ, args.slurm)
        return WatchTarget(root_of(tasks), _command_line(tasks[0].pid))
    if args.run_dir is not None:
        from diag.launch.inject import STACK_SIGNAL
        from diag.launch.runs import read_run

        data: dict[str, Any] = read_run(str(args.run_dir))
        pid = data.get("pid")
        if not isinstance(pid, int) or not Path(f"/proc/{pid}").is_dir():
            raise DiagError(
                f"the job of {args.run_dir} has ended", hint=f"diag replay {args.run_dir}", exit_code=2
            )
        return WatchTarget(pid, _command_line(pid), STACK_SIGNAL)
    if args.pid is None:
        return None
    if not Path(f"/proc/{args.pid}").is_dir():
        raise DiagError(
            f"there is no process {args.pid}", hint="give the pid of the launcher or of a rank", exit_code=2
        )
    return WatchTarget(args.pid, _command_line(args.pid))


def _command_line(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return [f"pid {pid}"]
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]


def cwd_of(pid: int) -> str:
    """The working directory by the process's own name for it; empty where it cannot be read."""
    from diag.sources.host.job_files import JobFiles

    try:
        with JobFiles(pid) as files:
            return files.cwd()
    except OSError:  # it has ended, or is another user's
        return ""


def nodes_of_job(words: list[str], pid: int, given: str) -> JobNodes:
    """What our own environment says, as a manifest gives it to the sidecar, and above it that of the job."""
    from diag.launch.launchers.nodes import nodes_of
    from diag.sources.host.job_files import JobFiles
    from diag.sources.host.process_tree import read_environ

    environment = {**os.environ, **(read_environ(pid) or {})}
    if given not in ("auto", "off"):
        return nodes_of(words, environment, given)  # a file that we were told of ourselves
    try:
        with JobFiles(pid) as files:
            return nodes_of(words, environment, given, read_text=files.read_text)
    except OSError:  # it has ended: nobody knows any more whose files it names
        return nodes_of(words, environment, given, read_text=lambda path: None)
