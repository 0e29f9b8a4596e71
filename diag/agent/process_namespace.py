"""The jobs among all processes that /proc shows: what `diag watch` looks for where no pid was given.

In a container that shares the process namespace of the trainer's, and in a second step of a Slurm job, the
ranks are no descendants of ours. They are recognised by their variables, grouped into jobs, and what is diag's own
is left out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from diag.agent.rank_finder import TASKS
from diag.launch.launchers import Identity, identify, is_diag, launches
from diag.sources.host.process_tree import (
    PROC,
    Process,
    ancestors,
    is_python,
    loads_torch,
    read_argv,
    read_environ,
    read_process,
    read_raw,
)

# Between fork and exec, and in a shell that becomes its Python, a process shows another's variables: young
# ones are read again.
_YOUNG_SECONDS = 60.0
# Process 1 of a pod, of docker run --init, of a machine: it has no ranks.
_INITS = ("pause", "catatonit", "tini", "docker-init", "dumb-init", "podman-init", "systemd", "init")
# What all ranks of one job have in common, by launcher.
_MEETING = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
)

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobSeen:
    """Processes that have the variables of ranks of one job: the ranks, what they started, and perhaps their
    launcher."""

    keys: frozenset[Key]
    pids: tuple[int, ...]
    only_tasks: bool  # numbered by srun or mpirun, which number everything that they start


@dataclass(frozen=True, slots=True)
class NamespaceScan:
    """`seen` counts the processes of others, `hidden` are those among them whose variables may not be read."""

    processes: Mapping[int, Process]
    seen: tuple[int, ...]
    hidden: tuple[int, ...]
    jobs: tuple[JobSeen, ...]


class Namespace:
    """Call `scan` about once a second. `environ` are our own variables: what they say of us is no rank."""

    def __init__(
        self, proc: Path = PROC, own: int | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.proc = proc
        self._own = os.getpid() if own is None else own
        self._environ = os.environ if environ is None else environ
        self._own_identity = identify(self._environ)
        self._known: dict[int, tuple[Process, tuple[Identity, Key] | None]] = {}
        self._hertz = os.sysconf("SC_CLK_TCK")

    def scan(self) -> NamespaceScan:
        """All there is now. Costs one small file a process, and the variables of those that are new."""
        pids = (int(name) for name in os.listdir(self.proc) if name.isdigit())
        read = ((pid, read_process(pid, self.proc)) for pid in pids)
        processes = {pid: one for pid, one in read if one is not None and one.state not in "ZX"}
        ours = self._ours(processes)
        others = tuple(pid for pid in processes if pid not in ours and not _is_system(pid, processes))
        up = float((read_raw(f"{self.proc}/uptime") or b"0").split()[0])
        found: dict[int, tuple[Identity, Key]] = {}
        hidden = []
        for pid in (pid for pid in processes if pid not in ours):
            process = processes[pid]
            known = self._known.get(pid)
            young = up - process.ticks / self._hertz < _YOUNG_SECONDS
            if known is None or known[0] != process or young:
                env = read_environ(pid, self.proc)
                if env is None:
                    self._known.pop(pid, None)
                    if pid in others:
                        hidden.append(pid)
                    continue
                known = self._known[pid] = (process, self._identified(pid, env))
            if known[1] is not None:
                found[pid] = known[1]
        for pid in [pid for pid in self._known if pid not in processes]:
            del self._known[pid]
        # the others ended during the scan
        alive = [pid for pid in hidden if Path(f"{self.proc}/{pid}").exists()]
        return NamespaceScan(processes, others, tuple(alive), _jobs(found, processes))

    def argv(self, pid: int) -> list[str]:
        return [word for word in read_argv(pid, self.proc) if word]

    def owner(self, pid: int) -> int | None:
        """The user that it runs as."""
        for line in (read_raw(f"{self.proc}/{pid}/status") or b"").splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
        return None

    def root_of(self, ranks: Collection[int], scan: NamespaceScan, *, whole: bool = False) -> int | None:
        """The process that the job begins with: whose end is the job's, and below which ranks are started
        again. None where they have none of their own: tasks of srun, a shell that somebody goes on typing in,
        containers of one rank each. `whole`: there are no more ranks than these."""
        ours = self._ours(scan.processes)
        lines = [(pid, *ancestors(pid, scan.processes)) for pid in ranks if pid in scan.processes]
        root = next((pid for pid in lines[0] if all(pid in line for line in lines[1:])), 0) if lines else 0
        if (
            root not in scan.processes
            or root in ours
            or not (root in ranks or self._starts_ranks(root, ranks, scan.processes))
        ):
            return None
        while (parent := scan.processes[root].parent) in scan.processes and parent not in ours:
            # A shell that is typed in gives each command a group of its own; a script, and a tool that calls
            # torchrun, do not.
            if scan.processes[parent].group != scan.processes[root].group and not launches(self.argv(parent)):
                break
            root = parent
        return None if root in ranks and not whole else root

    def _starts_ranks(self, pid: int, ranks: Collection[int], processes: Mapping[int, Process]) -> bool:
        """A launcher, known or not, or the script that they are started from; no login shell, no daemon of
        the machine."""
        if launches(self.argv(pid)) or any(
            processes[rank].group == processes[pid].group for rank in ranks if rank in processes
        ):
            return True
        return is_python(pid, self.proc)

    def launchers(self, scan: NamespaceScan) -> tuple[int, ...]:
        """Launchers that have started no rank yet (they wait for other nodes), the topmost of each tree."""
        found = {pid for pid in scan.seen if launches(self.argv(pid)) and self._is_of_our_job(pid)}
        return tuple(pid for pid in sorted(found) if not found & set(ancestors(pid, scan.processes)))

    def hidden_launchers(self, scan: NamespaceScan) -> tuple[int, ...]:
        """Those of other users, whose variables may not be read but whose command line everybody may, the topmost of
        each tree."""
        found = {pid for pid in scan.hidden if launches(self.argv(pid))}
        return tuple(pid for pid in sorted(found) if not found & set(ancestors(pid, scan.processes)))

    def _is_of_our_job(self, pid: int) -> bool:
        """Readable, and where we are in a job of Slurm, of that one."""
        env = read_environ(pid, self.proc)
        return env is not None and self._is_of_slurm_job(env)

    def _is_of_slurm_job(self, env: Mapping[str, str]) -> bool:
        job, node = self._environ.get("SLURM_JOB_ID"), self._environ.get("SLURMD_NODENAME")
        if job and env.get("SLURM_JOB_ID") != job:
            return False  # of another job on this machine,
        # or of another node of this one, on the same machine
        return not node or env.get("SLURMD_NODENAME", node) == node

    def alone(self, scan: NamespaceScan) -> tuple[int, ...]:
        """Processes with torch that have no rank's variables, the topmost of each tree."""
        torch = {pid for pid in scan.seen if is_python(pid, self.proc) and loads_torch(pid, self.proc)}
        return tuple(pid for pid in sorted(torch) if not torch & set(ancestors(pid, scan.processes)))

    # -- reading ------------------------------------------------------------------------------------------

    def _identified(self, pid: int, env: Mapping[str, str]) -> tuple[Identity, Key] | None:
        identity = identify(env)
        if identity is None or is_diag(self.argv(pid)) or self._is_ours_by_variables(pid, identity, env):
            return None
        if not self._is_of_slurm_job(env):
            return None
        return identity, (*(env.get(name, "") for name in _MEETING), str(identity.world_size))

    def _is_ours_by_variables(self, pid: int, identity: Identity, env: Mapping[str, str]) -> bool:
        """Other tasks of the Slurm step that we are in, and what is started in our container when that has a
        rank's variables."""
        if self._own_identity is None:
            return False
        if self._own_identity.launcher == "slurm" == identity.launcher:
            return all(env.get(name) == self._environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        place, ours = (read_raw(f"{self.proc}/{number}/cgroup") for number in (pid, self._own))
        return identity == self._own_identity and place is not None and place == ours

    def _ours(self, processes: Mapping[int, Process]) -> set[int]:
        """We, whom we started, and who started us."""
        ours = {pid for pid in processes if self._own in ancestors(pid, processes)}
        return ours | {self._own, *ancestors(self._own, processes)}


def _jobs(found: Mapping[int, tuple[Identity, Key]], processes: Mapping[int, Process]) -> tuple[JobSeen, ...]:
    """One for each meeting point; `srun torchrun` and what ranks start with ranks of their own are one with
    those above them."""
    leader = {key: key for _, key in found.values()}

    def first(key: Key) -> Key:
        while leader[key] != key:
            key = leader[key]
        return key

    for pid, (_, key) in found.items():
        for above in ancestors(pid, processes):
            if above in found:
                leader[first(key)] = first(found[above][1])
    jobs = []
    for one in sorted({first(key) for key in leader}):
        members = sorted(pid for pid, (_, key) in found.items() if first(key) == one)
        tasks = all(found[pid][0].launcher in TASKS for pid in members)
        jobs.append(JobSeen(frozenset(key for key in leader if first(key) == one), tuple(members), tasks))
    return tuple(jobs)


def _is_system(pid: int, processes: Mapping[int, Process]) -> bool:
    """The kernel's own, below kthreadd (in a container 2 is a process like any other), and an init."""
    if pid == 1:
        return processes[1].comm in _INITS
    return any(
        processes[one].comm == "kthreadd"
        for one in (pid, processes[pid].parent)
        if one == 2 and one in processes
    )
