"""What the checks of the launch go by: CMD as it is read, and the devices and cores here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.launch.launchers.command import Command, Container, Rendezvous, read_command
from diag.preflight.container import visible_devices
from diag.preflight.line import table
from diag.sources.host.cgroup_paths import find
from diag.sources.host.process_tree import PROC, read_raw

# Programs whose ranks are started by torch's elastic agent.
ELASTIC = ("torchrun", "accelerate")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """`inherited` is the environment that doctor was started in. `gpus` are the uuids of the GPUs here and
    `npus` the number of NPUs, None where they could not be read. `host` is this machine's name."""

    command: Command
    inherited: Mapping[str, str]
    gpus: tuple[str, ...] | None = None
    npus: int | None = None
    cores: float | None = None
    host: str = ""

    @property
    def given(self) -> bool:
        return bool(self.command.argv)

    @property
    def launch(self) -> Command | None:
        """None where CMD is no training command that diag can read, or not one of this machine."""
        return self.command if self.command.is_here else None

    @property
    def unread(self) -> str:
        """Why `launch` is None."""
        command = self.command
        if not self.given:
            return "no command was given"
        if command.elsewhere:
            return f"`{command.elsewhere}` starts it elsewhere, with another environment and other devices"
        return command.unread

    @property
    def container(self) -> Container | None:
        """The one that CMD itself makes."""
        return self.command.container

    @property
    def meeting(self) -> Rendezvous:
        return self.command.meeting

    @property
    def environment(self) -> Mapping[str, str]:
        """That CMD will have, as far as it is one of this machine."""
        return self.inherited if self.command.elsewhere else self.command.environment

    @property
    def unsure(self) -> str:
        """Why the number of nodes is not known; "" where it is."""
        return self.command.unsure

    @property
    def nodes(self) -> int | None:
        """Of the job; None where that is not known."""
        return None if self.unsure else self.meeting.nodes

    @property
    def is_elastic(self) -> bool:
        return self.command.is_here and self.command.is_elastic


def launch_facts(
    command: Sequence[str],
    environment: Mapping[str, str],
    gpus: tuple[str, ...] | None = None,
    npus: int | None = None,
    folder: Path = Path(),
) -> LaunchFacts:
    """Of `command` in `environment`; the devices are handed in, cores and host name are those of this machine.

    The one place that the lines of a report have these from: none can speak of another number of nodes than
    the next.
    """
    read = read_command(command, environment, folder)
    if read.container is not None:
        gpus = visible_devices(read.container, gpus)
    return LaunchFacts(read, environment, gpus, npus, cores_here(), os.uname().nodename)


def cores_here(pid: int | str = "self", proc: Path = PROC, own: Path = Path("/")) -> float | None:
    """Cores that this process may use: those of its affinity, or fewer by the cgroup's quota."""
    try:
        cores = float(len(os.sched_getaffinity(0)))
    except OSError:
        return None
    membership = (read_raw(f"{proc}/{pid}/cgroup") or b"").decode(errors="replace")
    number = os.getpid() if pid == "self" else int(pid)
    for _, folder in find(number, membership, "cpu", {1: "cpu.cfs_quota_us", 2: "cpu.max"}, proc, own).levels:
        quota = _quota(folder)
        if quota is not None:
            cores = min(cores, quota)
    return cores


def _quota(folder: str) -> float | None:
    # cgroup v2, cpu.max: "200000 100000" or "max 100000"; v1: cpu.cfs_quota_us -1 or microseconds of
    # cpu.cfs_period_us
    old = (read_raw(f"{folder}/cpu.cfs_{part}_us") or b"" for part in ("quota", "period"))
    both = (read_raw(f"{folder}/cpu.max") or b"").split() or b" ".join(old).split()
    try:
        quota, period = float(both[0]), float(both[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def version_beside(program: Path, pattern: str) -> tuple[int, ...] | None:
    """Of the wheel whose name begins so, in the Python environment that a program lies in; None where there is none,
    or several."""
    try:
        found = list(program.parent.parent.glob(f"lib/python3*/*-packages/{pattern}-*.dist-info"))
    except OSError:
        return None
    numbers = {re.search(r"-(\d+)\.(\d+)\.(\d+)", folder.name) for folder in found}
    versions = {tuple(map(int, each.groups())) for each in numbers if each}
    return versions.pop() if len(versions) == 1 else None


def flag(kind: str, launcher: str, number: int | str, nodes: int = 1) -> str:
    """The flag or variable by which this launcher is given a number of nodes, a node rank, ranks of a node."""
    flags = table("launch")["flags"][kind]
    total = number * nodes if isinstance(number, int) else 0
    return str(flags.get(launcher, flags[""])).format(number=number, total=total)
