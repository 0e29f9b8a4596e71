"""Whether and when NCCL RAS is asked: under suspicion only, twice at most, and never where a question may
cost the job.

Crashes by questions are known: nccl#1669 (2.26.2, while communicators are made), #1718 (2.26.5, polling),
#1762 (2.27.3), #2346 (2.29.7). `RasSampler` decides on the hub's thread and asks on one of its own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Placement, Record
from diag.model.observations import RasReading
from diag.settings import Settings
from diag.sources.collectives import nccl_ras
from diag.sources.host import run as run_source
from diag.sources.host.process_tree import PROC
from diag.sources.host.versions import library_of, version_of
from diag.state.stack_activity import Activity
from diag.state.view import JobView

SOURCE = nccl_ras.SOURCE

PATIENCE_SECONDS = 8.0  # a suspicion this old is no slow step
APART_SECONDS = 5.0  # two answers this far apart distinguish what is blocked from what moves
MOST_QUESTIONS = 2  # of one suspicion
# a job that is slow now and then is suspected again and again: polling is what crashed jobs
REST_SECONDS = 120.0
# beyond, the text report: it names only ranks that differ, and JSON would have tens of MB
MOST_RANKS_AS_JSON = 512

FIRST_WITH_RAS = (2, 24, 0)
FIRST_ALLOWED = (2, 28, 7)

_FORCE = "--ras force asks anyway, at the job's risk"
_CREATING = (Activity.COMM_INIT, Activity.RENDEZVOUS)
_EARLY_PHASES = ("launch", "rendezvous", "comm_init")


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    remedy: str = ""


def refusal(version: str, mode: str) -> Refusal | None:
    """Why this NCCL ("2.28.9"; empty: not known) is not asked with this setting; None when it may be."""
    parts = version.split(".")
    numbers = tuple(map(int, parts)) if len(parts) == 3 and all(map(str.isdecimal, parts)) else None
    if mode == "off":
        return Refusal("switched off", "leave out --ras off (DIAG_RAS, ras in diag.toml)")
    if numbers is None:
        if mode == "force":
            return None
        return Refusal(
            "the version of NCCL is not known, and some crash when asked", f"set NCCL_DEBUG=INFO; {_FORCE}"
        )
    if numbers < FIRST_WITH_RAS:
        return Refusal(
            f"NCCL {version} has no RAS", "NCCL 2.24 and later have it; 2.28.7 and later are asked"
        )
    if numbers < FIRST_ALLOWED and mode != "force":
        return Refusal(f"NCCL {version} may crash the job when asked", f"use NCCL 2.28.7 or later; {_FORCE}")
    return None


@dataclass(slots=True)
class Budget:
    """Counts questions. Times are seconds of a steady clock."""

    since: float | None = None  # the suspicion's beginning
    asked: int = 0
    last: float | None = None  # the last answer, of this suspicion or an earlier one
    closed: bool = False  # for the rest of this suspicion

    def note(self, now: float, suspicious: bool) -> None:
        if not suspicious:
            self.since = None
        elif self.since is None:  # an answer may have come between the two
            self.since, self.asked, self.closed = now, 0, False

    def due(self, now: float) -> bool:
        if (
            self.since is None
            or self.closed
            or self.asked >= MOST_QUESTIONS
            or now - self.since < PATIENCE_SECONDS
        ):
            return False
        return self.last is None or now - self.last >= (APART_SECONDS if self.asked else REST_SECONDS)

    def spend(self, now: float, answered: bool) -> None:
        """Who does not answer is not asked again during this suspicion."""
        self.asked += 1
        self.last = now
        self.closed = self.closed or not answered


@dataclass(frozen=True, slots=True)
class _Case:
    """What the asking thread needs of the job."""

    pids: tuple[int, ...]
    known_pids: frozenset[int]
    address: str
    version: str  # from the log
    disabled: bool
    world_size: int


class RasSampler(NodeSampler):
    """Asks when `tend` finds it due; no thread waits for that."""

    name, what, sources = "nccl-ras", SOURCE, (SOURCE,)

    def __init__(
        self,
        settings: Settings,
        reporter: Reporter,
        *,
        address: str | None = None,
        erred: Callable[[str, str], None] = lambda source, reason: None,
        ask: Callable[..., Any] = nccl_ras.read,
        proc: Path = PROC,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(reporter)
        self.mode = settings.ras
        self.budget = Budget()
        self._erred = erred
        self._ask, self._proc, self._steady = ask, proc, steady
        self._given = address
        self._variables: dict[int, dict[str, str]] = {}  # rank -> its environment, as far as it matters
        self._versions: dict[int, str] = {}  # pid -> of the library it has loaded
        self._refused = False  # it is in the journal why nothing was asked, or answered
        self._worker: threading.Thread | None = None

    @classmethod
    def of(cls, node: NodeContext) -> RasSampler:
        return cls(node.settings, node.reporter, address=node.ras_address, erred=node.erred)

    def start(self) -> None:
        """See `tend`."""

    @property
    def address(self) -> str | None:
        """NCCL_RAS_ADDR as far as it is known: the ranks' own, else what CMD was given."""
        for variables in self._variables.values():
            if variables.get("NCCL_RAS_ADDR"):
                return variables["NCCL_RAS_ADDR"]
        return self._given

    def rank_found(self, place: Placement, variables: dict[str, str]) -> None:
        self._variables[place.rank] = {
            name: value for name, value in variables.items() if name.startswith("NCCL_RAS_")
        }

    def tend(self, closer: bool, job: JobView) -> None:
        now = self._steady()
        suspicious = closer and job.returncode is None and job.interrupted_at is None
        self.budget.note(now, suspicious)
        if not suspicious:
            if self._refused and not self._busy():
                self._refused = False
                self.reporter.put(run_source.works(SOURCE, host=self.reporter.host))
            return
        if self._busy() or not self.budget.due(now):
            return
        if self._refused and self.budget.asked == 0 and creating(job) is not None:
            return  # reported already; asked as soon as that is over
        self._worker = threading.Thread(
            target=self._work, args=(self._case(job), creating(job)), name="nccl-ras", daemon=True
        )
        try:
            self._worker.start()
        except RuntimeError:  # no more threads: the job has that trouble, too
            self._worker, self.budget.closed = None, True

    def _busy(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    def _case(self, job: JobView) -> _Case:
        pids = tuple(rank.placement.pid for rank in job.alive_ranks())
        known = frozenset(rank.placement.pid for rank in job.ranks.values())
        # where NCCL says that it listens; not where a line of a log may send us to
        named = job.nccl.ras_address
        address = named if named.startswith(("127.", "::1")) else self.address
        disabled = any(variables.get("NCCL_RAS_ENABLE") == "0" for variables in self._variables.values())
        return _Case(
            pids,
            known,
            address or nccl_ras.DEFAULT_ADDRESS,
            job.nccl.version,
            disabled,
            max(job.world_size, len(known)),
        )

    # -- on the asking thread -----------------------------------------------------------------------------

    def _work(self, case: _Case, being_made: Refusal | None) -> None:
        done = False
        try:
            self._decide(case, being_made)
            done = True
        finally:
            if not done:  # a fault of ours: not again each second
                self.budget.closed = True
                self._erred(SOURCE, "error")

    def _decide(self, case: _Case, being_made: Refusal | None) -> None:
        version = case.version or self._version(case.pids)
        if version is None:
            self.budget.closed = True  # no NCCL in these processes: nothing to ask, nothing to say
            return
        refused = refusal(version, self.mode)
        if refused is None and case.disabled:
            refused = Refusal("RAS is switched off in the job (NCCL_RAS_ENABLE=0)", "unset NCCL_RAS_ENABLE")
        if refused is not None:
            self.budget.closed = True
            self._fail(refused)
        elif being_made is not None:
            self._fail(being_made)
        else:
            self._question(case)

    def _version(self, pids: Sequence[int]) -> str | None:
        """Of the first process that has NCCL; None when none has, empty when its version is not known."""
        for pid in pids:
            if pid in self._versions:
                return self._versions[pid]
            library = library_of(pid, self._proc)
            if library:
                self._versions[pid] = version_of(pid, library, self._proc)
                return self._versions[pid]
        return None

    def _question(self, case: _Case) -> None:
        began = time.monotonic()
        payload = self._ask(
            case.address, want_json=case.world_size <= MOST_RANKS_AS_JSON, own_addresses=_own_addresses()
        )
        answered = "failed" not in payload
        self.reporter.sampled(SOURCE, time.monotonic() - began)
        self.budget.spend(self._steady(), answered)
        if not answered:
            self._erred(SOURCE, str(payload["failed"]))
            self._refused = True
        record = Record(SOURCE, payload, host=self.reporter.host, emitted=time.time())
        if answered and _is_of_others(record, case.known_pids):
            self.budget.closed = True
            self._fail(
                Refusal(
                    f"what answers at {case.address} has no process of this job: it belongs to another job or pid namespace",
                    "give each job its own NCCL_RAS_ADDR (`diag run` does); run diag inside the job's container",
                )
            )
            return
        self.reporter.put(record)

    def _fail(self, refused: Refusal) -> None:
        self._refused = True
        self.reporter.put(run_source.failed(SOURCE, refused.reason, refused.remedy, host=self.reporter.host))


def creating(job: JobView) -> Refusal | None:
    """Whether communicators may be under way, as phase, stacks and NCCL's own lines tell."""
    if job.phase in _EARLY_PHASES:
        return Refusal(
            f"not asked while communicators may be being created: the job is in its {job.phase} phase"
        )
    # those of pipeline and tensor groups are made when first used
    if job.phase == "first_step" and not job.nccl.lines:
        return Refusal(
            "not asked before the first step: without NCCL's log it is not known whether communicators are being created",
            "set NCCL_DEBUG=INFO (`diag run` does, into a file of its own)",
        )
    for rank in job.alive_ranks():
        reading = rank.reading
        creates = reading is not None and (reading.activity in _CREATING or reading.context in _CREATING)
        if creates or job.nccl.being_made(rank.placement.pid) is not None:
            return Refusal(f"not asked while a communicator is being created, as on rank {rank.rank}")
    if job.ranks and 0 not in job.ranks and all(rank.placement.node_rank > 0 for rank in job.ranks.values()):
        return Refusal(
            "asked on the node of rank 0 only: its answer is about the whole job", "see diag on that node"
        )
    return None


def _is_of_others(record: Record, pids: frozenset[int]) -> bool:
    """Names processes, and none that we know."""
    for fact in nccl_ras.parse(record):
        if isinstance(fact, RasReading):
            named = {pid for _, pid in fact.dead}
            for communicator in fact.communicators:
                named.update(rank.pid for rank in communicator.ranks)
                named.update(one.pid for one in communicator.missing)
            return bool(named) and not named & pids
    return False


def _own_addresses() -> list[str]:
    """Of this host's interfaces: RAS names hosts by such."""
    with contextlib.suppress(OSError, psutil.Error):
        return sorted(
            {
                one.address.partition("%")[0]
                for several in psutil.net_if_addrs().values()
                for one in several
                if one.family in (socket.AF_INET, socket.AF_INET6)
            }
        )[:100]
    return []
