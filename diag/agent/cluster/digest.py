"""A node's digest: what of its observations and of its engine goes up to the job hub."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from diag.agent.cluster.roster import Identity
from diag.detectors.hang.rank_wait import busy_child, cause_of, classify_rank
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Finding, NotChecked
from diag.model.observations import (
    FlightRecorder,
    NcclFact,
    NodeDigest,
    Observation,
    RankDigest,
    RankFound,
    RasReading,
    RunStarted,
    StackSample,
    StackSampleSummary,
    ThreadSeen,
    ThreadStack,
)
from diag.model.observations.base import Event
from diag.sources.digest import FORWARDED, SCHEMA, wire, wire_all
from diag.state.cluster import MOST_FRAMES
from diag.state.rank_view import RankView
from diag.state.reducer import MainStackRead
from diag.state.stack_activity import Activity, format_frame, read_stack
from diag.state.stack_digest import living_children
from diag.state.view import JobView

_MOST_FACTS = 192  # of a rank: NCCL says some dozens while communicators are made
_MOST_LOOKS = 64  # of a rank between two digests
_WAITS = (Activity.COLLECTIVE, Activity.GPU_SYNC, Activity.BACKWARD)


class Collector:
    """Fed the same facts as the detectors. `looks` are kept only while `joined`: else they are not asked for."""

    name = "collector"
    listens = tuple(
        dict.fromkeys((MainStackRead, RankFound, RunStarted, FlightRecorder, RasReading, *FORWARDED))
    )

    def __init__(self) -> None:
        self.joined = False
        # of a kind that replaces itself
        self._newest: dict[tuple[str, int | None], tuple[int, Observation]] = {}
        self._facts: dict[int | None, deque[tuple[int, Observation]]] = {}
        self._looks: dict[int, deque[StackSampleSummary]] = {}
        self.stamp = 0  # grows with each fact
        self._pids: dict[int, int] = {}
        self._cwd = ""  # of the command on this node

    def observe(self, at: float, fact: Observation | Event) -> None:
        if isinstance(fact, MainStackRead):
            if self.joined:
                self._see(at, fact)
        elif isinstance(fact, RankFound):
            self._pids[fact.placement.pid] = fact.placement.rank
            if fact.rank is not None:
                self._facts.pop(fact.rank, None)  # another process has this rank now
        elif isinstance(fact, RunStarted):
            self._cwd = fact.cwd
        elif isinstance(fact, (FlightRecorder, RasReading)):
            self.stamp += 1
            self._newest[type(fact).__name__, fact.rank] = (self.stamp, fact)
        elif isinstance(fact, FORWARDED):
            rank = fact.rank
            if (
                isinstance(fact, NcclFact)
                and fact.line.rank is None
                and (rank := self._pids.get(fact.line.pid)) is not None
            ):
                # on other nodes its pid means nothing
                fact = replace(fact, rank=rank, line=replace(fact.line, rank=rank))
            self.stamp += 1
            self._facts.setdefault(rank, deque(maxlen=_MOST_FACTS)).append((self.stamp, fact))

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return ()

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def facts(self, after: int = -1) -> list[Observation]:
        """All that a job hub which knows nothing yet needs; `after`: what has come since this stamp."""
        kept = [*(fact for facts in self._facts.values() for fact in facts), *self._newest.values()]
        return [fact for stamp, fact in kept if stamp > after]

    def take_looks(self, rank: int) -> tuple[StackSampleSummary, ...]:
        """Those since the last time."""
        return tuple(self._looks.pop(rank, ()))

    def _see(self, at: float, event: MainStackRead) -> None:
        main, reading = event.main, event.reading
        if main is None or reading is None or not main.frames:
            return
        where = reading.where or main.frames[-1]
        look = StackSampleSummary(
            at,
            read_stack(main).activity in _WAITS,  # by its frames
            reading.activity.value,
            format_frame(where, self._cwd),
            Activity.CHECKPOINT in (reading.activity, reading.context),
            "" if reading.own is None else format_frame(reading.own, self._cwd),
        )
        self._looks.setdefault(event.rank, deque(maxlen=_MOST_LOOKS)).append(look)


_MOST_FRAMES = 200  # of one stack; a deeper one loses its middle
_MOST_THREADS = 64
_TAIL = 20
_MOST_FINDINGS, _MOST_LINES = 64, 64
# Calls of each group of a recorder: 50, as a hub keeps them, up to 655 ranks; 4 from 8,192 on.
_MOST_CALLS, _LEAST_CALLS, _ALL_CALLS = 50, 4, 1 << 15


@dataclass(slots=True)
class DigestMaker:
    """One for each receiver: it knows which frames and facts that one has. The engine's lock is held by
    the caller."""

    collector: Collector
    _sent_frames: set[str] = field(default_factory=set)
    _sent_facts: int = -1
    _seq: int = 0

    def forget(self) -> None:
        """The receiver is another, or has forgotten."""
        self._sent_frames.clear()
        self._sent_facts = -1

    def make(
        self,
        engine: Engine,
        me: Identity,
        now: float,
        every: float,
        gpus: Mapping[int, str],
        *,
        detail: int = 0,
        leaving: bool = False,
        trip: tuple[float | None, float | None] = (None, None),
        looks: bool = True,
        facts: bool = True,
    ) -> dict[str, Any]:
        """`detail` 0: what moves; 1: stacks of ranks too; 2: of all their children as well. `looks`: with the
        samples of stacks since the last time. `facts`: with what is forwarded of single ranks. `trip`: seconds
        of the last exchange with the job hub, and of its connection. `now` is told time: that of the last check
        may be long ago when a command has ended."""
        job = engine.job
        self._seq += 1
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "node": wire(_node(engine, me, self._seq, every, leaving=leaving, trip=trip), now),
            "ranks": [],
            "frames": {},
            "commands": {},
        }
        if len(self._sent_frames) > MOST_FRAMES:  # as many as a job hub keeps
            self._sent_frames.clear()
        for _, rank in sorted(job.ranks.items()):
            seen: dict[str, ThreadStack] = {}
            fact = _rank(engine, rank, me, detail, seen)
            taken = self.collector.take_looks(rank.rank) if looks else ()
            fact = replace(fact, gpu=gpus.get(rank.rank, ""), looks=taken)
            document["ranks"].append(wire(fact, now))
            for key, thread in seen.items():
                if key not in self._sent_frames:
                    frames, half = thread.frames, _MOST_FRAMES // 2
                    if len(frames) > _MOST_FRAMES:
                        frames = (*frames[:half], *frames[-half:])
                    document["frames"][key] = [[frame.function, frame.file, frame.line] for frame in frames]
                    self._sent_frames.add(key)
        if job.run.rank_argv and job.ranks:  # one reports it for all: they run the same command
            document["commands"] = {str(min(job.ranks)): " ".join(job.run.rank_argv)[:2000]}
        if facts and self.collector.stamp != self._sent_facts:
            known, self._sent_facts = self._sent_facts, self.collector.stamp
            news = self.collector.facts(known)
            document |= wire_all((_fitting(fact, job.world_size) for fact in news), now)
        return document


def _node(
    engine: Engine,
    me: Identity,
    seq: int,
    every: float,
    *,
    leaving: bool,
    trip: tuple[float | None, float | None],
) -> NodeDigest:
    job = engine.job
    known = [finding for finding in engine.active() if not finding.reported_by]
    withheld = list(engine.withheld.values())
    # the job hub says it of more nodes
    known += [finding for finding in withheld if finding.id not in PRECEDENCE.whole_job or finding.rule]
    return NodeDigest(
        rank=None,
        **asdict(me),
        seq=seq,
        ranks=len(job.ranks),
        world_size=job.world_size,
        phase=job.phases.own,
        marked_phase=job.phases.marked,
        phase_at=job.phases.since,
        phase_line=job.phases.line[:300],
        iteration=None if job.progress.borrowed else job.iteration,
        total_iterations=job.progress.total_iterations,
        iteration_at=job.progress.iteration_at,
        log_moved_at=job.progress.log_moved_at,
        save_moved_at=job.saves.moved_at,
        started_at=job.run.started_at,
        step_seconds=statistics.median(job.progress.step_seconds) if job.progress.step_seconds else None,
        line_seconds=max(job.progress.line_seconds, default=0.0),
        silence_seconds=job.silences.longest(job.phase, job.iteration),
        phase_seconds=job.silences.longest_phase(job.phase),
        returncode=job.returncode,
        interrupted=job.interrupted_at is not None,
        round_trip_seconds=trip[0],
        connect_seconds=trip[1],
        skew_seconds=None,
        every_seconds=every,
        findings=tuple(map(_short, known[:_MOST_FINDINGS])),
        deaths=_own(known, withheld, "rank-died"),
        hangs=(*_own(known, withheld, "hang"), *_own(known, withheld, "held-up")),
        # without what the job hub reported of others: it would come back to it as ours
        not_checked=tuple(engine.not_checked(but="verdict")[:_MOST_LINES]),
        leaving=leaving,
    )


def _own(known: list[Finding], withheld: list[Finding], name: str) -> tuple[Finding, ...]:
    """What this node reports, or would if no hub judged the whole job."""
    found = {
        finding.key: finding for finding in (*known, *withheld) if finding.id == name and not finding.rule
    }
    return tuple(map(_short, found.values()))


def _short(finding: Finding) -> Finding:
    return replace(
        finding,
        summary=finding.summary[:2000],
        advice=finding.advice[:2000],
        evidence=tuple(replace(item, excerpt=item.excerpt[:1000]) for item in finding.evidence[:6]),
    )


def _rank(
    engine: Engine, rank: RankView, me: Identity, detail: int, seen: dict[str, ThreadStack]
) -> RankDigest:
    tree, stack = rank.tree, rank.stack
    looked = detail > 0 and rank.alive and stack is not None
    standing = classify_rank(rank) if looked or rank.stopped else ""
    cause, child = cause_of(rank, standing) if standing not in ("", "stopped", "blind") else ("", None)
    children = _children(rank, detail) if looked or detail > 1 else []
    states = {process.pid: process.state for process in tree.children} if tree else {}
    exited = rank.exit
    if exited is not None:
        exited = replace(exited, ended=rank.exited_at, last=())
    return RankDigest(
        rank=rank.rank,
        placement=rank.placement,
        run_id=me.run_id,
        at=engine.now,
        moved=tuple(sorted(rank.moved.items())),
        alive=rank.alive,
        state=tree.main.state if tree else "",
        comm=tree.main.comm if tree else "",
        tree_at=rank.tree_at,
        cpu_ratio=_rounded(rank.cpu_ratio),
        main_cpu_ratio=_rounded(rank.main_cpu_ratio),
        rss_bytes=tree.main.rss_bytes if tree else 0,
        stopped_at=rank.stopped_since,
        stack_at=rank.stack_at,
        stack_since=rank.stack_since,
        stack_samples=rank.stack_samples,
        stack_how=stack.how if stack else "",
        standing=standing,
        cause=cause,
        child=child,
        threads=_threads(stack, seen) if looked and stack is not None else (),
        children=tuple(
            (sample.pid, states.get(sample.pid, ""), sample.how, _threads(sample, seen))
            for sample in children
        ),
        exited=exited,
        tail=tuple(line[:500] for line in list(rank.tail)[-_TAIL:]) if exited is not None else (),
        thread=rank.thread,
    )


def _children(rank: RankView, detail: int) -> list[StackSample]:
    """Those whose stacks are reported: all, or the one that its rank waits for."""
    if detail > 1:
        return [sample for _, sample in living_children(rank)]
    busy = busy_child(rank)
    return [busy] if busy is not None else []


def _fitting(fact: Observation, world_size: int) -> Observation:
    """Of a recorder in a large job only the last calls of each group, and all that are pending: where ranks
    stand. The job hub keeps two readings of each rank."""
    if not isinstance(fact, FlightRecorder):
        return fact
    if world_size <= _ALL_CALLS // _MOST_CALLS:
        return fact
    most = max(_LEAST_CALLS, min(_MOST_CALLS, _ALL_CALLS // max(1, world_size)))
    left: dict[tuple[str, str, bool], int] = {}
    kept = []
    for entry in reversed(fact.entries):
        key = (entry.backend, entry.group, entry.is_p2p)
        left[key] = left.get(key, most) - 1
        if entry.pending or left[key] >= 0:
            # so that equal calls of many ranks are one
            kept.append(replace(entry, op_id=0, record_id=0, time_created=0.0))
    return replace(fact, entries=tuple(reversed(kept)))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _threads(sample: StackSample, seen: dict[str, ThreadStack]) -> tuple[ThreadSeen, ...]:
    """The main thread first: of a process with very many threads the rest may be cut."""
    main = sample.main
    threads = sorted(sample.threads, key=lambda thread: thread is not main)[:_MOST_THREADS]
    found = []
    for thread in threads:
        key = _key(thread)
        seen.setdefault(key, thread)
        found.append(ThreadSeen(key, thread.thread_id, thread.name, thread.active, thread.owns_gil))
    return tuple(found)


def _key(thread: ThreadStack) -> str:
    text = json.dumps(
        [(frame.function, frame.file, frame.line) for frame in thread.frames], separators=(",", ":")
    )
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()
