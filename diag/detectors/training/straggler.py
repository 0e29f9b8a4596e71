"""Is one rank slower than its peers, so that they wait for it in each step? If so: which, by how much, and
where."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.contract import Detector
from diag.detectors.training.core_shares import CoreShares, Starved
from diag.detectors.training.recorders import Latecomers
from diag.detectors.training.short_of_cores import short_of_cores
from diag.detectors.training.straggler_samples import GpuWaitSample, RankSample, Split, StepSamples, split
from diag.detectors.training.straggler_words import Around, StragglerVerdict, straggler_finding
from diag.knowledge.flags import pipeline_parallel_size
from diag.model import Finding, NotChecked, Placement
from diag.model.observations import (
    EnvironmentSeen,
    FlightRecorder,
    GpuSample,
    LayoutReported,
    MetricsLogged,
    Observation,
    PhaseMarked,
    ProcessTree,
    RankDigest,
    RankFound,
    RunStarted,
    SaveFinished,
    SaveStarted,
)
from diag.model.observations.base import Event
from diag.state.arrivals import Latecomer
from diag.state.gpustate import device_of
from diag.state.reducer import MainStackRead, StepMade
from diag.state.stack_activity import Activity
from diag.state.view import JobView

# Chance of naming a rank of a job whose ranks wait alike, at one check of one window of samples. Windows
# overlap, and there are some hundred independent ones in a day.
_FALSE_ALARM = 1e-6
# Ours: below this the loss is not worth waking anybody, and layouts that are a little uneven by design reach
# it.
_STACK_SHARE = 0.25
_GPU_SHARE = 0.5
# How often the slow rank itself may be found waiting, against the others: gloo's own work shows as waiting
# too. On the bundled job healthy ranks stood at 0.58-0.85 of samples, at most 0.12 apart; a rank that took
# twice as long at 0.41 against 0.81.
_MOST_OWN_WAITS = 0.6
# Samples of a GPU from which it may be asked whether it bears out what the stacks say.
_GPU_SAMPLES = 8
# A loop may make a hundred steps in a second; samples come each few seconds.
_JUDGED_SECONDS = 1.0
# Samples near a threshold cross it to and fro.
_VERDICT_STANDS_SECONDS = 120.0
# After so long a silence nothing is reported, and so long after that (`holds_seconds` in findings.yaml) what was
# reported is withdrawn: together no more than the least patience before a silence is called a hang.
_QUIET_SECONDS, _QUIET_SILENCES = 8.0, 1.2

_STAGE_CALLS = ("megatron/core/pipeline_parallel/p2p_communication.py", "deepspeed/runtime/pipe/p2p.py")
# A second channel bears out what the first shows: it need not be sure by itself.
_BEARS_OUT = 1e-2


class StragglerDetector(Detector):
    name = "straggler"
    listens = (
        MainStackRead,
        StepMade,
        GpuSample,
        RankFound,
        LayoutReported,
        RankDigest,
        EnvironmentSeen,
        RunStarted,
        *StepSamples.listens,
        *CoreShares.listens,
        *Latecomers.listens,
    )

    def __init__(self) -> None:
        self._looks = StepSamples()
        self._cores = CoreShares()
        self._latecomers = Latecomers()
        self._places: dict[int, Placement] = {}
        self._cwd = ""  # of the command
        self._pipeline: int | None = None  # stages, by the command line or the log
        self._has_stages = False  # calls between stages were seen
        self._visible: dict[int, str] = {}  # rank -> CUDA_VISIBLE_DEVICES
        self._verdict: StragglerVerdict | None = None
        self._verdict_at = 0.0  # when it held last
        self._judged_at = 0.0

    # -- facts ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: Observation | Event) -> None:
        if isinstance(fact, MainStackRead):
            self._see_stack(at, fact)
        elif isinstance(fact, GpuSample):
            self._looks.see_gpu(fact.index, GpuWaitSample.of(at, fact))
        elif isinstance(fact, StepMade):
            self._looks.steps_made(at, fact.steps)
            if at - self._judged_at >= _JUDGED_SECONDS:
                self._judge(at)
        elif isinstance(fact, RankFound):
            self._see_rank(fact)
        elif isinstance(fact, RunStarted):
            self._cwd = fact.cwd
        elif isinstance(fact, LayoutReported):
            self._pipeline = fact.stages
        elif isinstance(fact, RankDigest):
            for look in fact.looks:
                self._looks.see_stack(fact.placement.rank, RankSample.passed_on(look))
        elif isinstance(fact, EnvironmentSeen):
            if fact.rank is not None:
                self._visible[fact.rank] = dict(fact.variables).get("CUDA_VISIBLE_DEVICES", "")
        elif isinstance(fact, ProcessTree):
            self._cores.observe(at, fact)
        elif isinstance(fact, FlightRecorder):
            self._latecomers.observe(at, fact, len(self._places))
        elif isinstance(fact, (SaveStarted, SaveFinished, PhaseMarked, MetricsLogged)):
            self._looks.observe(at, fact)

    def _see_rank(self, fact: RankFound) -> None:
        self._pipeline = pipeline_parallel_size(fact.command) or self._pipeline
        known, self._places[fact.placement.rank] = self._places.get(fact.placement.rank), fact.placement
        # another attempt: what was seen is of the one before
        if known is not None and known.pid != fact.placement.pid:
            self._looks.start_over()
            self._latecomers.start_over()
            self._verdict, self._has_stages = None, False

    def _see_stack(self, at: float, event: MainStackRead) -> None:
        main, reading = event.main, event.reading
        if main is None or reading is None or not main.frames:
            return
        if any(part in frame.file for frame in main.frames for part in _STAGE_CALLS):
            self._has_stages = True
        self._looks.see_stack(event.rank, RankSample.of(at, main, reading, self._cwd))

    def _judge(self, at: float) -> None:
        """A step was made: do the samples so far show a slow rank? Their verdict is kept for a while when
        they just miss it."""
        self._judged_at = at
        found = self._find(at)
        if found is not None:
            same = self._verdict is not None and self._verdict.found.slow == found.found.slow
            known = self._verdict.elsewhere if self._verdict is not None and same else ()
            elsewhere = tuple(sorted({*known, *self._waiting_elsewhere(found.found)}))
            self._verdict, self._verdict_at = replace(found, elsewhere=elsewhere), at
        elif self._verdict is not None and at - self._verdict_at > _VERDICT_STANDS_SECONDS:
            self._verdict = None

    def _find(self, at: float) -> StragglerVerdict | None:
        if not (self._places or self._looks.stacks or self._looks.gpus):
            return None  # a log alone
        stages = self._stages()
        if stages is None:
            return None
        gpus, ours = self._gpus()
        uses_gpus = _used(gpus)
        by_stack = {
            rank: [look.waits_for_peers(uses_gpus) for look in looks]
            for rank, looks in self._looks.compared().items()
            if rank in self._places
        }
        by_gpu = {rank: [look.waits for look in looks] for rank, looks in gpus.items()}
        for stage in stages:
            found = self._in_stage(_of(by_stack, stage), _of(by_gpu, stage), ours, at)
            if found is not None:
                return found
        return None

    def _in_stage(
        self, by_stack: dict[int, list[bool]], by_gpu: dict[int, list[bool]], ours: bool, at: float
    ) -> StragglerVerdict | None:
        """`ours`: it is known that nobody else works on the GPUs."""
        late = self._late(at, frozenset(by_stack or by_gpu))
        sure = _BEARS_OUT if late else _FALSE_ALARM
        stacks = split(by_stack, sure, _STACK_SHARE, _MOST_OWN_WAITS)
        gpu = split(by_gpu, sure, _GPU_SHARE, _MOST_OWN_WAITS)
        if late is None:
            if stacks is not None and self._is_refuted(stacks, by_gpu):
                stacks = None
            if gpu is not None and (
                (stacks is None and self._contradicts(gpu, by_stack)) or not (ours or stacks)
            ):
                gpu = None
            found = stacks or gpu
            if found is None:
                return None
            agreed = stacks is not None and gpu is not None and stacks.slow == gpu.slow
            eyes = "stacks" if stacks is not None else "gpus"
            return StragglerVerdict(found, eyes, agreed, starved=self._starved(found))
        # Who comes last is the straggler where anything else shows that it matters; whoever else it seemed to be.
        named, others = (late[0].rank,), tuple(rank for rank in late[1] if rank != late[0].rank)
        seen = [(one, eyes) for one, eyes in ((stacks, "stacks"), (gpu, "gpus")) if one and one.slow == named]
        order = Split(named, others, 0.0, 0.0, 0.0)
        starved = self._starved(order)
        if not seen and not starved:
            return None
        found, eyes = seen[0] if seen else (order, "")
        return StragglerVerdict(
            found, eyes, len(seen) + bool(starved) > 1, latecomer=late[0], starved=starved
        )

    def _late(self, at: float, stage: frozenset[int]) -> tuple[Latecomer, tuple[int, ...]] | None:
        """Who came last to nearly all collectives, and the ranks of its stage that took part in them."""
        last = self._latecomers.last(at)
        if last is None or last[0].rank not in stage or len({one.host for one in self._places.values()}) > 1:
            return None
        ranks = tuple(rank for rank in last[1].ranks if rank in stage)
        return (last[0], ranks) if len(ranks) > 1 else None

    def _starved(self, found: Split) -> tuple[Starved, ...]:
        """Of the slow ranks those that get too little of a core, where the others do not."""
        return () if self._cores.starved(found.waiting) else self._cores.starved(found.slow)

    def _waiting_elsewhere(self, found: Split) -> Iterator[int]:
        uses_gpus, compared = _used(self._gpus()[0]), self._looks.compared()
        for rank in self._places:
            looks = compared.get(rank)
            if not looks or rank in (*found.slow, *found.waiting):
                continue
            waits = statistics.fmean(look.waits_for_peers(uses_gpus) for look in looks)
            if waits - found.slow_ratio >= _STACK_SHARE:
                yield rank

    def _stages(self) -> list[tuple[int, ...]] | None:
        """Ranks that do the same work, as Megatron numbers them (the pipeline varies slowest); None when it
        cannot be known."""
        ranks = tuple(sorted(self._places))
        if self._pipeline is None and self._has_stages:
            return None
        count = self._pipeline or 1
        if count == 1:
            return [ranks]
        world = max((place.world_size for place in self._places.values()), default=0)
        size = world // count
        if size < 2 or world % count:
            return None
        stages = [tuple(rank for rank in ranks if rank // size == stage) for stage in range(count)]
        return [stage for stage in stages if len(stage) > 1]

    def _gpus(self) -> tuple[dict[int, list[GpuWaitSample]], bool]:
        """Each rank's GPU: by its pid where the driver shows pids of our namespace, and only while nobody else is
        on it; else by its local rank, and whether it is the rank's alone is not known (False)."""
        pids = {
            pid: rank for rank, place in self._places.items() for pid in (place.pid, *self._cores.pids(rank))
        }
        found: dict[int, list[GpuWaitSample]] = {}
        seen = False
        for looks in self._looks.gpus.values():
            owner = next((pids[pid] for look in reversed(looks) for pid in look.pids if pid in pids), None)
            if owner is None:
                continue
            seen = True
            alone = [look for look in looks if all(pids.get(pid) == owner for pid in look.pids)]
            if alone:
                found[owner] = alone
        if seen:
            return found, True
        for rank, place in self._places.items():
            device = device_of(self._visible.get(rank, ""), place.local_rank)
            index = int(device) if device.isdigit() else place.local_rank
            if self._looks.gpus.get(index):
                found[rank] = list(self._looks.gpus[index])
        return found, False

    def _contradicts(self, gpu: Split, by_stack: dict[int, list[bool]]) -> bool:
        """The rank that the GPUs point at waits itself: it is its GPU that is not used, by intent."""
        looks = [waits for rank in gpu.slow for waits in by_stack.get(rank, ())]
        return bool(looks) and statistics.fmean(looks) > _MOST_OWN_WAITS / 2

    def _is_refuted(self, stacks: Split, by_gpu: dict[int, list[bool]]) -> bool:
        """Only some ranks wait for their GPU by a call that the stack shows (a timer on rank 0): then the
        GPUs are all alike."""
        compared = self._looks.compared()
        waits = [look for rank in stacks.waiting for look in compared[rank] if look.waits]
        if 2 * sum(look.activity is not Activity.GPU_SYNC for look in waits) >= len(waits):
            return False  # most wait in a collective, which needs no second opinion
        slow, others = (
            [
                sum(by_gpu[rank]) / len(by_gpu[rank])
                for rank in ranks
                if len(by_gpu.get(rank, ())) >= _GPU_SAMPLES
            ]
            for ranks in (stacks.slow, stacks.waiting)
        )
        return bool(slow and others) and statistics.fmean(others) - statistics.fmean(slow) < stacks.share / 3

    # -- findings -------------------------------------------------------------------------------------------

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if not self._may_report(now, job):
            return
        if self._verdict is not None:
            yield self._finding(self._verdict, job, now)
        elif job.phase == "steady":
            short = short_of_cores(self._cores, self._looks.compared, job, now)
            if short is not None:
                yield short

    def _may_report(self, now: float, job: JobView) -> bool:
        """Not of a job that stands still, or of which a part is stopped or gone: that is a hang's matter, or
        a death's."""
        alive = job.alive_ranks()
        if (
            job.broken
            or any(rank.stopped or rank.traced for rank in alive)
            or (alive and len(alive) != len(job.ranks))
        ):
            return False
        quiet = max(_QUIET_SECONDS, _QUIET_SILENCES * job.silences.longest("steady", job.iteration))
        return not alive or now - job.last_progress() <= quiet

    def _finding(self, verdict: StragglerVerdict, job: JobView, now: float) -> Finding:
        gpus, _ = self._gpus()
        slow = verdict.found.slow
        around = Around(
            self._looks.compared(),
            gpus,
            _used(gpus),
            self._looks.excess(slow, verdict.found.waiting),
            statistics.median(job.progress.step_seconds) if job.progress.step_seconds else None,
        )
        return straggler_finding(verdict, around, self._looks.since(slow, now))

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        gpus, ours = self._gpus()
        if not ours and _used(gpus):
            yield NotChecked(
                "whether the GPUs are shared",
                "the driver shows no process of the job: in a container without the host's pids it cannot",
                "start the container with the host's pids (hostPID: true, --pid=host)",
            )
        if job.phase == "steady" and len(job.ranks) > 1 and self._stages() is None:
            yield NotChecked(
                "straggler",
                "the ranks are stages of a pipeline, and none has a peer here that does the same work",
                "with more than one rank a stage, and --pipeline_model_parallel_size on the command line or `PP: N` in its "
                "log, they are compared",
            )


def _of(waits: dict[int, list[bool]], stage: tuple[int, ...]) -> dict[int, list[bool]]:
    return (
        {rank: waits[rank] for rank in stage if rank in waits} if all(rank in waits for rank in stage) else {}
    )


def _used(gpus: dict[int, list[GpuWaitSample]]) -> bool:
    return any(look.utilization for looks in gpus.values() for look in looks)
