"""What the checks of the launch go by: CMD taken apart, the environment before and in it, and the devices and cores here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diag.estimate.errors import EstimateError
from diag.estimate.launch import Launch, take_apart
from diag.launchers.rendezvous import Rendezvous, rendezvous, split_environment
from diag.sources.cgroup_places import find
from diag.sources.tree import PROC, read_raw

__all__ = ["LaunchFacts", "cores_here", "launch_facts", "launched"]

# Programs whose ranks are started by torch's elastic agent.
ELASTIC = ("torchrun", "accelerate")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """`launch` is None where CMD is no training command that diag can read; `unread` says why. `inherited` is the environment
    that doctor was started in, `environment` the one that CMD will have. `gpus` are the uuids of the GPUs here and `npus` the
    number of NPUs, None where nobody could look. `host` is this machine's name."""

    launch: Launch | None
    unread: str
    meeting: Rendezvous
    inherited: Mapping[str, str]
    environment: Mapping[str, str]
    gpus: tuple[str, ...] | None = None
    npus: int | None = None
    cores: float | None = None
    host: str = ""
    given: bool = True
    folder: Path = field(default_factory=Path)

    @property
    def is_elastic(self) -> bool:
        """Whether torch's agent will start the ranks, and so overwrite RANK, WORLD_SIZE and their kin."""
        launch = self.launch
        if launch is None:
            return False
        if launch.launcher in ELASTIC or launch.launcher == "deepspeed":
            return True
        return launch.program in ("swift", "megatron") and launch.launcher in ("swift", "megatron") and self.by_torchrun

    @property
    def by_torchrun(self) -> bool:
        """swift/cli/main.py, use_torchrun: of ms-swift 3.x and 4.x alike."""
        return "NPROC_PER_NODE" in self.environment or "NNODES" in self.environment


def launched(command: Sequence[str], environment: Mapping[str, str], folder: Path = Path()) -> tuple[Launch | None, str]:
    """CMD taken apart, or why it could not be."""
    if not command:
        return None, "no command was given"
    try:
        return take_apart(command, environment, folder), ""
    except (EstimateError, ValueError, IndexError) as error:
        return None, str(error)


def launch_facts(
    command: Sequence[str],
    environment: Mapping[str, str],
    gpus: tuple[str, ...] | None = None,
    npus: int | None = None,
    folder: Path = Path(),
) -> LaunchFacts:
    """Of `command` in `environment`; the devices are told, cores and host name are those of this machine."""
    words, env = split_environment(command, environment)
    launch, unread = launched(command, environment, folder)
    if launch is not None:
        env = launch.environment
    return LaunchFacts(
        launch,
        unread,
        rendezvous(words, env),
        environment,
        env,
        gpus,
        npus,
        cores_here(),
        os.uname().nodename,
        bool(words),
        folder,
    )


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
    # cgroup v2, cpu.max: "200000 100000" or "max 100000"; v1: cpu.cfs_quota_us -1 or microseconds of cpu.cfs_period_us
    both = (read_raw(f"{folder}/cpu.max") or b"").split()
    if not both:
        both = [
            *(read_raw(f"{folder}/cpu.cfs_quota_us") or b"").split(),
            *(read_raw(f"{folder}/cpu.cfs_period_us") or b"").split(),
        ]
    try:
        quota, period = float(both[0]), float(both[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None
