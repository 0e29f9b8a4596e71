"""What the checks of the launch go by: CMD taken apart, the environment before and in it, and the devices and
cores here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diag.launch.launchers.rendezvous import Rendezvous, rendezvous, split_environment
from diag.preflight.estimate.errors import EstimateError
from diag.preflight.estimate.launch import ELSEWHERE, Launch, take_apart
from diag.preflight.estimate.shell_script import is_computed
from diag.sources.host.cgroup_places import find
from diag.sources.host.process_tree import PROC, read_raw

__all__ = ["LaunchFacts", "cores_here", "launch_facts", "launched"]

# Programs whose ranks are started by torch's elastic agent.
ELASTIC = ("torchrun", "accelerate")
_UNREAD = "CMD could not be read (see launch)"
# These go by what they are told themselves, however many of them srun starts.
_BY_THEMSELVES = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "swift", "megatron")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """`launch` is None where CMD is no training command that diag can read; `unread` says why. `inherited` is
    the environment that doctor was started in, `environment` the one that CMD will have. `gpus` are the uuids
    of the GPUs here and `npus` the number of NPUs, None where nobody could look. `host` is this machine's
    name. `command` is CMD's line with the launcher, where CMD is a script that has it. `meeting.nodes` is the
    number of nodes that all checks go by, and a guess where `unsure`."""

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
    command: tuple[str, ...] = ()

    @property
    def _is_direct(self) -> bool:
        """Whether CMD itself is a launcher's line, which is started here, though not all of it could be read."""
        return bool(self.meeting.launcher) and not any(
            word.rpartition("/")[2] in ELSEWHERE for word in self.command
        )

    @property
    def unsure(self) -> str:
        """Why the number of nodes is not known; "" where it is."""
        meeting, launch = self.meeting, self.launch
        wrong = next(
            (bad for bad in meeting.bad if meeting.nodes_from and bad.startswith(f"{meeting.nodes_from} ")),
            "",
        )
        if wrong:
            return (
                f"`{wrong}` is computed when the job starts"
                if is_computed(wrong)
                else f"`{wrong}` is no number"
            )
        if not self.given:
            return "" if meeting.nodes > 1 else "no command was given"
        if launch is None:
            return "" if self._is_direct else _UNREAD
        if launch.opaque:
            return launch.opaque
        return (
            f"`{launch.unseen}` in the script may set it" if launch.unseen and not meeting.nodes_from else ""
        )

    @property
    def nodes(self) -> int | None:
        """Of the job; None where that is not known."""
        return None if self.unsure else self.meeting.nodes

    @property
    def environment_unseen(self) -> str:
        """Why CMD may have other variables than `environment` holds; "" where it has these."""
        if self.launch is None:
            return "" if not self.given or self._is_direct else _UNREAD
        return f"`{self.launch.unseen}` in the script may set more" if self.launch.unseen else ""

    @property
    def is_elastic(self) -> bool:
        """Whether torch's agent will start the ranks, and so overwrite RANK, WORLD_SIZE and their kin."""
        launch = self.launch
        if launch is None:
            return False
        if launch.launcher in ELASTIC or launch.launcher == "deepspeed":
            return True
        return (
            launch.program in ("swift", "megatron")
            and launch.launcher in ("swift", "megatron")
            and self.by_torchrun
        )

    @property
    def by_torchrun(self) -> bool:
        """swift/cli/main.py, use_torchrun: of ms-swift 3.x and 4.x alike."""
        return "NPROC_PER_NODE" in self.environment or "NNODES" in self.environment


def launched(
    command: Sequence[str], environment: Mapping[str, str], folder: Path = Path()
) -> tuple[Launch | None, str]:
    """CMD taken apart, or why it could not be."""
    if not command:
        return None, "no command was given"
    try:
        return take_apart(command, environment, folder, certain=True), ""
    except (EstimateError, ValueError, IndexError) as error:
        return None, str(error)


def _meeting(words: Sequence[str], env: Mapping[str, str], launch: Launch | None) -> Rendezvous:
    """Where the nodes meet, with the number of them: as the launcher is told, or what starts it (srun, a file
    of hosts)."""
    found = rendezvous(words, env)
    if (
        launch is None
        or launch.nodes is None
        or found.launcher in _BY_THEMSELVES
        or launch.nodes <= found.nodes
    ):
        return found
    return replace(found, nodes=launch.nodes, nodes_from=launch.nodes_from)


def launch_facts(
    command: Sequence[str],
    environment: Mapping[str, str],
    gpus: tuple[str, ...] | None = None,
    npus: int | None = None,
    folder: Path = Path(),
) -> LaunchFacts:
    """Of `command` in `environment`; the devices are told, cores and host name are those of this machine.

    The one place that the lines of a report have these from: none can speak of another number of nodes than
    the next.
    """
    words, env = split_environment(command, environment)
    launch, unread = launched(command, environment, folder)
    if launch is not None:
        words, env = launch.command, launch.environment
    return LaunchFacts(
        launch,
        unread,
        _meeting(words, env, launch),
        environment,
        env,
        gpus,
        npus,
        cores_here(),
        os.uname().nodename,
        bool(command),
        folder,
        tuple(words),
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
    # cgroup v2, cpu.max: "200000 100000" or "max 100000"; v1: cpu.cfs_quota_us -1 or microseconds of
    # cpu.cfs_period_us
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
