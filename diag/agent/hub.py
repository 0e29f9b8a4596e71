"""One a node: owns the engine, the journal and the sidecars. Everything else hands it records.

One thread (whoever calls `loop`) stamps each record with the told time, writes it to the journal and feeds
the engine; outputs read the engine under `lock`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import diag
from diag.agent.cluster.hubside import Membership
from diag.agent.dumps import DumpTaker
from diag.agent.evidence import EvidenceKeeper
from diag.agent.flames import FlameRecorder
from diag.agent.log_backlog import JobOutput
from diag.agent.memory_sampler import watchers
from diag.agent.rank_finder import Found, RankFinder
from diag.agent.rank_search import RankSearch
from diag.agent.record_feed import HubClock, RecordFeed
from diag.agent.samplers.context import NodeContext
from diag.agent.samplers.node_samplers import NodeSamplers
from diag.agent.samplers.ras import RasSampler
from diag.agent.samplers.sampler import Reporter
from diag.agent.sidecar_pool import SidecarPool
from diag.detectors import make_detectors
from diag.detectors.hang import HangDetector, wants_closer_look
from diag.detectors.precedence import PRECEDENCE
from diag.detectors.rules.load import for_a_run
from diag.engine.engine import CHECK_SECONDS, Engine
from diag.engine.journal import JournalWriter
from diag.launch.launchers.nodes import job_name
from diag.launch.launchers.secrets import redacted
from diag.launch.malloc import use_few_heaps
from diag.launch.rundir import RunDir
from diag.launch.service_discovery import Target
from diag.model import Change, Placement, Record
from diag.model.observations import EvidenceKept
from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.view.view import AgentProcess, Counters, FlameWanted
from diag.settings import Settings
from diag.sources import digest as digest_source
from diag.sources.host import exits
from diag.sources.host import run as run_source
from diag.sources.host.process_tree import Processes
from diag.sources.parsers import PARSERS

_SELF_SECONDS = 5.0
# the loop takes records at least twice a second; so long after the last time this process did not run
_AWAY_SECONDS = 3.0
_LAST_EVIDENCE_SECONDS = 5.0  # for a bundle that is being taken when CMD ends: its ranks answer no more
_BATCH = 500  # records taken under one hold of the lock, which the outputs wait for


class Hub:
    """See the module. `on_change` is called on the loop's thread for each change, `on_kept` for each bundle that was
    written without a person; without the lock."""

    def __init__(
        self,
        settings: Settings,
        run_dir: RunDir | None,
        *,
        stack_signal: int = 0,
        stack_dir: Path | None = None,
        talk: Callable[[str], None] = lambda text: None,
        ras_address: str | None = None,
        attached: bool = False,
    ) -> None:
        use_few_heaps()
        self._attached = attached
        self.settings = settings
        self.run_dir = run_dir
        rules = for_a_run(settings.rules, talk)
        detectors = make_detectors(rules)
        self._hang = next(one for one in detectors if isinstance(one, HangDetector))
        self.cluster = Membership(self, settings, talk)
        self.engine = Engine(PARSERS, [*detectors, self.cluster.collector], PRECEDENCE)
        self.lock = threading.RLock()
        self.run_id = run_dir.run_id if run_dir else "unrecorded"
        self.version = diag.__version__
        self.recorded = ""
        self.started_at = time.time()
        self.counters = Counters()
        self.environment: dict[int, dict[str, str]] = {}  # of each rank, the allow-listed part
        self.token: str | None = settings.token
        self.bound_beyond_loopback = False
        self.host = socket.gethostname()
        self.job_id = job_name(settings.job_id, (), os.environ, self.run_id)
        self.address = ""  # host:port by which others reach the server, once there is one
        self.on_change: Callable[[Change], None] = lambda change: None
        self.on_kept: Callable[[EvidenceKept], None] = lambda kept: None
        self._talk = talk
        self.clock = HubClock()
        journal = JournalWriter(run_dir.path, max_bytes=settings.journal_max_bytes) if run_dir else None
        self._records = RecordFeed(self.engine, self.clock, journal, _BATCH, self._journal_failed)
        # where the hook in the ranks writes
        self._hook_dir = stack_dir or (run_dir.path if run_dir else None)
        self._pool = SidecarPool(
            settings,
            self._hook_dir,
            stack_signal,
            Reporter(self.put, self.host, sampled=self._sampled, erred=self._erred),
        )
        self._samplers = NodeSamplers(
            NodeContext(
                Reporter(self.put, self.host, sampled=self._sampled),
                self.engine,
                self.lock,
                settings,
                run_dir=str(run_dir.path) if run_dir else "",
                kernel_words=rules.kernel_words,
                ras_address=ras_address,
                erred=self._erred,
            )
        )
        self._dumps = DumpTaker(self, self.cluster, self._pool, self._samplers.read_soon, self._records)
        self._evidence = EvidenceKeeper(self, self._dumps, settings, self._pool.processes)
        self._kept = 0  # bundles that were passed on
        self._flames = FlameRecorder()
        self._search: RankSearch | None = None
        self.output = JobOutput(
            self._records.put,
            self.host,
            run_dir.path if run_dir else None,
            stack_dir.resolve() if stack_dir else None,
            attached=attached,
            literals=rules.literals,
        )
        self._next: dict[str, float] = {}
        self._mode = "normal"
        self._took_at = time.monotonic()
        # what this node by itself would report of the job, as the job hub knows it
        self._alone: set[tuple[object, ...]] = set()

    @property
    def nccl_ras_address(self) -> str | None:
        """Where the job's NCCL answers questions, as far as it is known."""
        return self._samplers[RasSampler].address

    def targets(self) -> tuple[Target, ...]:
        """See diag.launch.service_discovery: this hub first, where it can be scraped, then those of the job that it knows
        of."""
        scheme = "https" if self.settings.tls_cert else "http"
        own = (Target(self.address, self.job_id, self.host, self.run_id, scheme),) if self.address else ()
        return (*own, *self.cluster.other_targets())

    # -- taking records -----------------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """Hand over a record from any thread; never waits."""
        self._records.put(record)

    def hurry(self) -> None:
        """`loop` is to ask `until` now. For any thread."""
        self._records.hurry()

    def keep(self, seconds: float) -> bool:
        """Whether all that was put is in the journal on disk, within so many seconds. For another thread than the loop's."""
        taken = self._records.await_taken(seconds)
        with self.lock:
            self._records.flush()
            return taken and self._records.works

    @property
    def dumps(self) -> DumpTaker:
        return self._dumps

    def _sampled(self, source: str, seconds: float) -> None:
        with self.lock:
            self.counters.sampled(source, seconds)

    def _erred(self, source: str, reason: str) -> None:
        with self.lock:
            self.counters.sampler_errors[(source, reason)] += 1

    # -- watching -----------------------------------------------------------------------------------------

    def watch_job(
        self,
        argv: list[str],
        pid: int,
        cwd: str = "",
        among: Processes | None = None,
        *,
        pointed_at: bool = False,
    ) -> None:
        """The job's root process is `pid`, in directory `cwd`: look for its ranks from now on, below it or `among` these.
        `pointed_at`: a person named it, to learn why it does not go on."""
        self.job_id = job_name(self.settings.job_id, argv, os.environ, self.run_id)
        machine = os.uname().machine
        self.put(
            run_source.started(
                redacted(argv),
                pid,
                self.host,
                cwd=cwd,
                attached=self._attached,
                machine=machine,
                pointed_at=pointed_at,
            )
        )
        nets = [name.strip() for name in self.settings.expected_net.split(",") if name.strip()]
        if nets:
            self.put(run_source.expected(nets, self.host))
        finder = RankFinder(
            pid if among is None else among, self.host, run_dir=self._hook_dir, unhooked=self._attached
        )
        hooked = self._hook_dir is not None and not self._attached and self.settings.inject
        self._search = RankSearch(
            self,
            finder,
            self._talk,
            lone_seconds=self.settings.lone_process_seconds,
            is_of_several=lambda: self.cluster.of_several,
            hooked=hooked,
        )
        self._samplers.start(argv, pid, launched=among is None, attached=self._attached)

    def loop(self, until: Callable[[], bool]) -> None:
        """Take records and run the checks until `until()` says so; returns with the queue drained. Sleeps until the next
        record, the next thing to do, or `hurry`."""
        while not until():
            self._take(self._until_due())
            self._housekeep()
        self._drain()

    def settle(self, seconds: float, done: Callable[[], bool]) -> None:
        """Take what still arrives, for at most `seconds` or until `done()`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not done():
            self._take(0.05)

    def _drain(self) -> None:
        """Take all that is there now; what comes meanwhile is the next caller's, or this would not end."""
        for _ in range(self._records.waiting // _BATCH + 1):
            self._take(0.0)

    def _take(self, wait: float) -> None:
        batch = self._records.batch(wait)
        changes: list[Change] = []
        away = time.monotonic() - self._took_at
        with self.lock:
            if away > _AWAY_SECONDS:
                changes += self._records.feed(run_source.looked_away(away, self.host))
            changes += self._records.take(batch)
            counters, journal = self.counters, self._records.journal
            counters.records_total = self.engine.records
            counters.journal_bytes_total = journal.bytes_total if journal is not None else 0
            counters.log_lines_total = self.engine.job.log.lines
            counters.log_lines_dropped_total = self.output.dropped_lines
            kept = self.engine.job.run.evidence[self._kept :]
            alone: set[tuple[object, ...]] = {
                (key, finding.klass, finding.ranks) for key, finding in self.engine.withheld.items()
            }
        if alone - self._alone or any(record and record.source == exits.SOURCE for record, _ in batch):
            self.cluster.hurry()  # what the others may be waiting to hear
        self._alone = alone
        for change in changes:
            self._evidence.hear(change)
            self.on_change(change)
        self._kept += len(kept)
        for _, bundle in kept:
            self.on_kept(bundle)
        self._took_at = time.monotonic()

    def _journal_failed(self, problem: str) -> None:
        reason = f"cannot be written any more: {problem}"
        remedy = "free space in the run directory; findings continue without it"
        self.put(run_source.failed("journal", reason, remedy, host=self.host))
        self._talk(f"diag: the journal ends here ({problem}); the job and the checks continue")

    def finish(self, returncode: int | None) -> list[Change]:
        """CMD ended (or the watch did): last checks, journal closed, sidecars ended. Returns the last
        changes."""
        self._evidence.close()
        if not self._evidence.is_idle():
            self.settle(_LAST_EVIDENCE_SECONDS, self._evidence.is_idle)
            self._evidence.forget_half()
        self._samplers.stop()
        self._drain()  # the last save's line tells where to look
        self._samplers.finish()
        if returncode is not None:
            self.put(run_source.ended(returncode, self.host))
        self._drain()
        self._hear_the_others(returncode)
        with self.lock:
            changes = self.engine.finish()
        for change in changes:
            self.on_change(change)
        self.cluster.leave()
        self._flames.close()
        self._pool.close()
        self._samplers.close()
        if self._records.journal is not None:
            self._records.journal.close()
        return changes

    def _hear_the_others(self, returncode: int | None) -> None:
        """CMD ended: what the hubs of other nodes make of it, before the last checks."""
        if self.cluster.member is None:
            return
        failed = bool(returncode) and self.engine.job.interrupted_at is None
        if failed:  # until a check has shown what the last records come to
            self.settle(CHECK_SECONDS + 0.1, lambda: False)
        self.cluster.member.conclude(failed)
        self._drain()
        if failed and self.cluster.is_unexplained():
            reason = "the job hub did not report on this failure"
            self.put(Record(digest_source.VERDICT_SOURCE, digest_source.lost(reason), host=self.host))
            self._drain()

    # -- now and then -------------------------------------------------------------------------------------

    def _due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + seconds
        return True

    def _until_due(self) -> float:
        return max(0.0, min(self._next.values(), default=0.0) - time.monotonic())

    def _housekeep(self) -> None:
        if self._search is not None and self._due("scan", self._search.period()):
            self._search.scan()
        if self._due("files", 0.5):
            self.output.read_new()
        if self._due("second", 1.0):
            with self.lock:  # a dump flushes it too
                self._records.flush()
            self._choose_mode()
            with self.lock:
                alive = {rank.rank for rank in self.engine.job.alive_ranks()}
            self._pool.tend(alive.__contains__)
        if self._due("self", _SELF_SECONDS):
            self._measure_self()

    def add_rank(self, found: Found) -> None:
        """A rank for the engine; a sidecar beside it; the files it prints to."""
        self.environment[found.placement.rank] = found.variables
        self.put(
            run_source.rank_found(
                found.placement,
                found.command,
                found.variables,
                distributed=found.distributed,
                group=found.group,
                thread=found.thread,
            )
        )
        self._samplers.rank_found(found.placement, found.variables)
        self.cluster.rank_found(found)
        self._pool.watch(found.placement)
        if self._search is not None:
            self.output.follow(found, self._search.finder)
        self.output.follow_nccl(found)

    def withdraw_rank(self, rank: int) -> None:
        """Its process was taken for this rank, and is none."""
        self.environment.pop(rank, None)
        self._pool.forget(rank)

    def _choose_mode(self) -> None:
        with self.lock:
            closer = wants_closer_look(self.clock(), self.engine.job)
            closer |= self.cluster.detail_wanted
            watching = watchers(self.engine.job.ranks.values())
            self._samplers.tend(closer, self.engine.job)
        mode = "closer" if closer else "normal"
        if mode != self._mode:
            self.cluster.hurry()
        self._mode = mode
        self._pool.set_mode(mode)
        self._pool.set_memory_watchers(watching)

    def _measure_self(self) -> None:
        processes: dict[tuple[str, int | None], AgentProcess] = {}
        pids: dict[tuple[str, int | None], int] = {("hub", None): os.getpid()}
        pids.update({("sidecar", rank): pid for rank, pid in self._pool.processes().items()})
        for key, pid in pids.items():
            cost = _cost(pid)
            if cost is not None:
                processes[key] = cost
        with self.lock:
            self.counters.processes.update(processes)
            for gone in [key for key in self.counters.processes if key not in processes]:
                del self.counters.processes[gone]

    @property
    def closer(self) -> bool:
        """The job is suspected, here or by the job hub: more is read."""
        return self._mode == "closer"

    def gpu_states(self) -> dict[int, str]:
        with self.lock:
            return self._hang.gpu_states(self.engine.now, self.engine.job)

    # -- flame graphs and dumps ---------------------------------------------------------------------------

    async def flame(self, place: Placement, wanted: FlameWanted) -> bytes:
        """See HubView. py-spy is started from here, because the ranks' hook allows this process and its
        descendants."""
        return await self._flames.record(place, wanted)

    async def dump(self, deadline: float, *, native: bool = False, scope: str = "job") -> dict[str, Any]:
        """See HubView. On a daemon thread: the end of diag does not wait for a dump."""
        return await in_daemon_thread(lambda: self._dumps.take(deadline, native=native, scope=scope))


def _cost(pid: int) -> AgentProcess | None:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        # With the children that ended: py-spy is a child of its sidecar and a cost of ours.
        return AgentProcess(
            times.user + times.system + times.children_user + times.children_system, process.memory_info().rss
        )
    except psutil.Error:
        return None
