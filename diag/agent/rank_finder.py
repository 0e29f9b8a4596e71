"""Finds the ranks of a job among its processes (the descendants of its root, most often): by their environment,
and by the process group that they have joined."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from diag.agent.group_reports import BY_GROUP, GroupReport, GroupReports, members, named
from diag.agent.own_variables import OwnVariables
from diag.agent.ray_tree import RayTree
from diag.launch.launchers import (
    Environment,
    Identity,
    by_rank_alone,
    helps,
    identify,
    is_spawned,
    launches,
    relevant,
)
from diag.launch.launchers.secrets import redacted
from diag.model import Placement
from diag.sources.host.process_tree import (
    PROC,
    Process,
    Processes,
    Tree,
    ancestors,
    is_python,
    loads_torch,
    read_argv,
    read_environ,
    read_process,
    read_raw,
)

# A shell with a rank's variables sets up its environment before it starts Python: 3 s of the hub's quick
# scans. Ours.
_SHELL_SCANS = 12
TASKS = ("slurm", "openmpi", "pmi")  # launchers that number whatever they start


@dataclass(frozen=True, slots=True)
class Found:
    """A rank's process. `variables` is the allow-listed part of its environment."""

    placement: Placement
    command: str
    variables: dict[str, str]
    distributed: bool = True
    group: int = 0  # it is the how-many-th process group of the process that says so; 0: its environment
    thread: tuple[int, ...] = ()  # that joined the group: the kernel's number and Python's; (): the main one


@dataclass(frozen=True, slots=True)
class _Known:
    key: tuple[int, int]  # pid and start_ticks
    identity: Identity
    thread: tuple[int, ...] = ()


class RankFinder:
    """Call `scan` about once a second: it reads the environment of each process until that is a rank's.

    A rank is the topmost Python process with a rank's variables: DataLoader workers below it inherit them,
    and a shell above it (`srun bash -c 'python train.py'`) or torchrun itself (`srun torchrun`) has them as
    well. A rank that is no Python at all is taken as it is once it has stayed so for some scans, and never
    after a Python one: a shell that outlives its rank, or a DataLoader worker that does and is adopted by
    CMD, is not that rank started again.

    What has joined a process group (the hook in it says so, in the run directory) is that rank of it, whatever
    its environment says (`group_reports`). `withdrawn`: who was called a rank, and is none by the last scan. `shared`:
    numbers that several processes have side by side, new in the last scan, and their pids.
    """

    def __init__(
        self,
        where: int | Processes,
        host: str,
        proc: Path = PROC,
        *,
        run_dir: Path | None = None,
        unhooked: bool = False,
    ) -> None:
        """`where` is the job's root process, or what else gives the processes to search. `unhooked`: the hook is in none of
        them, and who has set a rank's variables itself is found by its memory."""
        self._host = host
        self._reports = GroupReports(run_dir, proc)
        self._lone: tuple[int, int] | None = None  # was taken for rank 0, for want of others
        self.withdrawn: list[tuple[int, int]] = []  # numbers and pids
        self.shared: list[tuple[int, tuple[int, ...]]] = []
        self._shared: dict[int, tuple[int, ...]] = {}  # by rank
        self._proc = proc
        self._tree = RayTree(where, proc) if isinstance(where, int) else where
        self._unhooked = unhooked
        self._own = OwnVariables(proc)
        self._given: set[str] | None = None  # RANK of the job's root; None: RANK alone makes no rank
        self._asked: frozenset[int] = frozenset()  # members of a group whose environment was compared with it
        self._counted = 0  # of ranks whose environment does not say how many there are
        self._known: dict[tuple[int, int], Identity | None] = {}
        self._found: dict[int, _Known] = {}  # by rank
        self._found_python: set[int] = set()  # ranks
        self._inner: set[tuple[int, int]] = set()  # processes that were seen below their rank's own
        # no Python: for how many scans it has been its rank's topmost
        self._waited: dict[tuple[int, int], int] = {}
        self.denied = 0

    def scan(self) -> list[Found]:
        """Ranks that are new, whose process is another than last time (elastic restart), or whose number or
        world is."""
        reports = self._reports.read()
        below = (*self._tree.roots, *self._tree.scan())
        pids = (*below, *(pid for pid in reports.keys() - set(below) if self._wrote(reports[pid])))
        stats = {pid: found for pid in pids if (found := read_process(pid, self._proc)) is not None}
        read = ((pid, self._identity(pid, process.ticks)) for pid, process in stats.items())
        identities = {pid: identity for pid, identity in read if identity is not None}
        self._forget({(pid, process.ticks) for pid, process in stats.items()})
        launched = self._leave_out(identities, stats)
        group = members({pid: report for pid, report in reports.items() if pid in stats}, launched, stats)
        self._learn_numbers(group, identities)
        ranks = named(launched, group, stats)
        chosen = self._topmost(ranks, stats)
        self._withdraw(chosen, group, stats)
        new = []
        for rank, pid in chosen.items():
            report, key, known = group.get(pid), (pid, stats[pid].ticks), self._found.get(rank)
            here = _Known(key, ranks[pid], () if report is None else report.thread)
            if here == known:
                continue
            if (known is not None and known.key == key) or self._is_settled(rank, key):
                self._found[rank] = here
                new.append(self._describe(pid, key[1], ranks[pid], by=report))
        self._note_inner(identities, stats)
        self._note_shared(ranks, stats)
        return new

    def _learn_numbers(self, group: Mapping[int, GroupReport], identities: Mapping[int, Identity]) -> None:
        """No launcher numbers them, and each has joined the group as what its RANK says: whoever is started with such a
        number from now on (again, after one has failed) is that rank before it has joined any group."""
        pids = frozenset(group)
        if self._given is not None or len(pids) < 2 or pids == self._asked or not pids.isdisjoint(identities):
            return
        self._asked = pids
        given = {(read_environ(pid, self._proc) or {}).get("RANK", "") for pid in self._tree.roots}
        numbers = {pid: read_environ(pid, self._proc) or {} for pid in pids}
        if all(
            (env.get("RANK"), env.get("WORLD_SIZE")) == (str(group[pid].rank), str(group[pid].world))
            and env.get("RANK") not in given
            for pid, env in numbers.items()
        ):
            self._given = given

    def _wrote(self, report: GroupReport) -> bool:
        """Started by the job and not below its root any more, as Ray's daemons are: no file of the job may name
        another user's process."""
        try:
            return Path(f"{self._proc}/{report.pid}").stat().st_uid == report.uid
        except OSError:
            return False

    def _withdraw(
        self, chosen: Mapping[int, int], group: Mapping[int, GroupReport], stats: Mapping[int, Process]
    ) -> None:
        """Who was called a rank, lives, and is none now that the ranks are known; who is another rank is no
        news here."""
        self.withdrawn = []
        if not chosen:
            return
        now = set(chosen.values())

        def is_none(key: tuple[int, int]) -> bool:
            process = stats.get(key[0]) if key[0] not in now else None
            return process is not None and process.ticks == key[1] and process.state not in "ZX"

        if self._lone is not None:
            if is_none(self._lone):
                self.withdrawn.append((0, self._lone[0]))
            self._lone = None
        for rank, known in list(self._found.items()):
            if known.key[0] in now and chosen.get(rank) != known.key[0]:
                del self._found[rank]
            elif is_none(known.key) and (group or known.identity.launcher == BY_GROUP):
                del self._found[rank]
                self.withdrawn.append((rank, known.key[0]))

    def take_rank_alone(self) -> bool:
        """For a command none of whose processes has LOCAL_RANK: whether some have a RANK that was set for them, and not
        for all of the job as a platform numbers its nodes. From now on these are ranks. Where none has a WORLD_SIZE,
        those are the world that one process started, with all numbers from 0 on, and that load torch."""
        self._given = {(read_environ(pid, self._proc) or {}).get("RANK", "") for pid in self._tree.roots}
        below = {
            pid: env
            for pid in self._tree.scan()
            if is_python(pid, self._proc) and (env := read_environ(pid, self._proc)) is not None
        }
        self._counted = 0
        if not any(map(self._identify, below.values())):
            self._counted = self._count_ranks(below, self._given)
        if not any(map(self._identify, below.values())):
            self._given = None
        return self._given is not None

    def _count_ranks(self, below: Mapping[int, Environment], given: set[str]) -> int:
        numbers: dict[int, list[str]] = {}  # by the process that started them
        for pid, env in below.items():
            process, number = read_process(pid, self._proc), env.get("RANK", "")
            if process is None or not number or number in given or "WORLD_SIZE" in env:
                continue
            if loads_torch(pid, self._proc):
                numbers.setdefault(process.parent, []).append(number)
        counts = [len(of) for of in numbers.values() if sorted(of) == sorted(map(str, range(len(of))))]
        return max(counts, default=0)

    def sole_process(self) -> Found | None:
        """For a command without ranks: its topmost Python process (the root itself, or below a shell) as rank
        0; of several, as those of a shell's pipe, the one that has loaded torch.

        `swift sft` on one GPU starts one process and waits for it: that one.
        """
        pids = [pid for pid in (*self._tree.roots, *self._tree.scan()) if is_python(pid, self._proc)]
        pids = [pid for pid in pids if not launches(self._argv(pid))] or pids
        below = Tree(pids[0], self._proc).scan(full=True) if pids else ()
        beside = [pid for pid in pids if pid not in below and loads_torch(pid, self._proc)]
        pid = next(iter((*beside, *pids)), None)
        known = read_process(pid, self._proc) if pid is not None else None
        if pid is None or known is None:
            return None
        self._lone = (pid, known.ticks)
        return self._describe(pid, known.ticks, Identity(0, 0, 1, "local", 0, 1), distributed=False)

    def drives_ray(self, pid: int) -> bool:
        """It is a driver of Ray's, as far as was looked."""
        return isinstance(self._tree, RayTree) and self._tree.driver == pid

    def spawned(self, pid: int) -> int:
        """How many processes below it multiprocessing has started that load torch: mp.spawn's ranks, perhaps."""
        below = Tree(pid, self._proc).scan(full=True)
        return sum(is_spawned(self._argv(one)) and loads_torch(one, self._proc) for one in below)

    def _leave_out(
        self, identities: dict[int, Identity], stats: Mapping[int, Process]
    ) -> dict[int, Identity]:
        """Without what has a rank's variables and is none: launchers, helpers, and what was seen below a
        rank."""
        return {
            pid: identity
            for pid, identity in identities.items()
            if (key := (pid, stats[pid].ticks)) not in self._inner
            and (
                ((known := self._found.get(identity.rank)) is not None and known.key == key)
                or not (
                    launches(argv := self._argv(pid))
                    or helps(argv)
                    or self._is_task_of_launcher(pid, identities, stats)
                )
            )
        }

    def _note_inner(self, identities: dict[int, Identity], stats: Mapping[int, Process]) -> None:
        """Remember who lives below their rank's own Python process: they may outlive it."""
        for pid, identity in identities.items():
            key, known = (pid, stats[pid].ticks), self._found.get(identity.rank)
            above = stats.get(known.key[0]) if known is not None else None
            if (
                known is not None
                and key != known.key
                and identity.rank in self._found_python
                and known.identity.launcher == identity.launcher
                and above is not None
                and above.ticks == known.key[1]
                and _is_below(pid, known.key[0], stats)
            ):
                self._inner.add(key)

    def _note_shared(self, ranks: Mapping[int, Identity], stats: Mapping[int, Process]) -> None:
        """The same program with the same number, neither below the other: a rank's helpers and workers are below it, and
        what outlives it runs something else or was noted there."""
        others: dict[int, list[int]] = {}
        for pid, identity in ranks.items():
            if (known := self._found.get(identity.rank)) is not None and known.key[0] in ranks:
                first = known.key[0]
                apart = not _is_below(pid, first, stats) and not _is_below(first, pid, stats)
                if (
                    apart
                    and is_python(pid, self._proc)
                    and _program(self._argv(pid)) == _program(self._argv(first))
                ):
                    others.setdefault(identity.rank, [first]).append(pid)
        found = {rank: tuple(sorted(pids)) for rank, pids in others.items()}
        self.shared = [(rank, pids) for rank, pids in found.items() if self._shared.get(rank) != pids]
        self._shared |= found

    def _is_task_of_launcher(
        self, pid: int, identities: dict[int, Identity], stats: Mapping[int, Process]
    ) -> bool:
        """A task of srun or mpirun that has ranks of torchrun below it: the task's number is not a rank."""
        task = identities[pid]
        return task.launcher in TASKS and any(
            other.launcher not in TASKS and other.rank != task.rank and _is_below(below, pid, stats)
            for below, other in identities.items()
        )

    def _is_settled(self, rank: int, key: tuple[int, int]) -> bool:
        if is_python(key[0], self._proc):
            self._found_python.add(rank)
            return True
        if rank in self._found_python:
            return False
        self._waited[key] = self._waited.get(key, 0) + 1
        return self._waited[key] > _SHELL_SCANS

    def _topmost(self, identities: dict[int, Identity], stats: Mapping[int, Process]) -> dict[int, int]:
        chosen: dict[int, int] = {}
        for pid in sorted(identities, key=lambda pid: len(ancestors(pid, stats))):
            rank = identities[pid].rank
            above = chosen.get(rank)
            if above is None or (
                _is_below(pid, above, stats)
                and not self._was_python(rank, (above, stats[above].ticks))
                and not is_python(above, self._proc)
                and is_python(pid, self._proc)
            ):
                chosen[rank] = pid
        return chosen

    def _was_python(self, rank: int, key: tuple[int, int]) -> bool:
        """A rank that the kernel is ending has no program any more, while its workers still have theirs."""
        known = self._found.get(rank)
        return known is not None and known.key == key and rank in self._found_python

    def _identity(self, pid: int, ticks: int) -> Identity | None:
        """Read again while a process is young: between fork and exec it still shows its parent's environment."""
        key = (pid, ticks)
        known = self._known.get(key)
        if known is not None:
            return known
        env = read_environ(pid, self._proc)
        if env is None:
            self.denied += key not in self._known
            self._known.setdefault(key, None)
            return None
        identity = self._identify(env)
        if identity is None and (self._unhooked or pid in self._beside()) and (own := self._own.of(key)):
            identity = self._identify(own)
        self._known[key] = identity
        return identity

    def _beside(self) -> frozenset[int]:
        """Processes of the job that are not below its root: the hook is in none of them."""
        return self._tree.beside if isinstance(self._tree, RayTree) else frozenset()

    def _identify(self, env: Environment) -> Identity | None:
        identity = identify(env)
        if identity is None and self._given is not None and env.get("RANK") not in self._given:
            return by_rank_alone(env, self._counted)
        return identity

    def _forget(self, seen: set[tuple[int, int]]) -> None:
        """What was not seen may live on: a rank that ends loses its children some moments before another has
        them."""
        known = self._known.keys() | self._inner
        alive = seen | {
            key
            for key in known - seen
            if (process := read_process(key[0], self._proc)) is not None and process.ticks == key[1]
        }
        self._known = {key: identity for key, identity in self._known.items() if key in alive}
        self._own.keep_only(alive)
        self._waited = {key: scans for key, scans in self._waited.items() if key in alive}
        self._inner &= alive

    def _describe(
        self, pid: int, ticks: int, who: Identity, *, distributed: bool = True, by: GroupReport | None = None
    ) -> Found:
        env = {**(read_environ(pid, self._proc) or {}), **(by.variables if by is not None else {})}
        if by is None:
            env |= self._own.known(pid)
        command = " ".join(redacted([word for word in self._argv(pid) if word]))
        place = Placement(host=self._host, pid=pid, start_ticks=ticks, **asdict(who))
        group, thread = (0, ()) if by is None else (by.number, by.thread)
        return Found(place, command[:2000], relevant(env), distributed, group, thread)

    def _argv(self, pid: int) -> list[str]:
        return read_argv(pid, self._proc)

    def output_files(self, pid: int) -> Iterator[tuple[str, Path, bool]]:
        """Regular files that a process's stdout and stderr go to (torchrun --log-dir, a shell's redirection),
        and whether it appends to them: then an earlier run's lines may stand before its own. Of another
        container the file is named through that one's root."""
        for number, name in ((1, "stdout"), (2, "stderr")):
            descriptor = self._proc / str(pid) / "fd" / str(number)
            try:
                target, file = Path(os.readlink(descriptor)), descriptor.stat()
            except OSError:
                continue
            if not stat.S_ISREG(file.st_mode) or not target.is_absolute():
                continue
            for path in (target, Path(f"{self._proc}/{pid}/root{target}")):
                if _is_same(path, file):
                    flags = read_raw(f"{self._proc}/{pid}/fdinfo/{number}") or b""
                    octal = next(
                        (line.split()[1] for line in flags.splitlines() if line.startswith(b"flags:")), b"0"
                    )
                    yield name, path, bool(int(octal, 8) & os.O_APPEND)
                    break

    def why_not_heard(self, pid: int) -> tuple[str, str]:
        """Why nothing that it prints is read, and what to do about it."""
        try:
            target = os.readlink(self._proc / str(pid) / "fd" / "1")
        except OSError:
            target = ""
        if not target:
            reason = "diag is not permitted to see where standard output goes"
        elif target.startswith(("pipe:", "socket:")):
            reason = (
                "standard output is a pipe (of the container's runtime, of srun), which has one reader only"
            )
        else:
            reason = f"standard output is {target}, which is not a file that diag can read"
        return reason, (
            "have it print to files: torchrun --redirects 3 --log-dir DIR, or `CMD > FILE 2>&1`, or start it with "
            "`diag run -- CMD`; afterwards `diag replay LOG` reads what was kept"
        )


def _program(argv: list[str]) -> list[str]:
    """Without its own arguments.

    >>> _program(["python", "-u", "-m", "train", "--card", "1"])
    ['python', '-u', '-m', 'train']
    """
    ends = next((at for at, word in enumerate(argv[1:], 2) if not word.startswith("-")), len(argv))
    return argv[:ends]


def _is_below(pid: int, above: int, stats: Mapping[int, Process]) -> bool:
    return above in (pid, *ancestors(pid, stats))


def _is_same(path: Path, file: os.stat_result) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)
