"""Is one rank slower than its peers, so that they wait for it in each step? If so: which, by how much, and
where."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row
from diag.detectors.training.straggler_samples import GpuWaitSample, RankSample, Split, StepSamples, split
from diag.knowledge.parallel_layout import pipeline_parallel_size
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Placement, numbered
from diag.model.observations import (
    EnvironmentSeen,
    GpuSample,
    Iteration,
    LayoutReported,
    MetricsLogged,
    Observation,
    PhaseMarked,
    RankDigest,
    RankFound,
    RunStarted,
    SaveFinished,
    SaveStarted,
    StackSample,
)
from diag.state.gpustate import device_of
from diag.state.stack_activity import Activity, read_stack
from diag.state.view import JobView
from diag.text.units import format_quantity, format_ranks, format_ratio, format_seconds

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
# Samples near a threshold cross it to and fro.
_VERDICT_STANDS_SECONDS = 120.0
# After so long a silence nothing is reported, and so long after that (`holds_seconds` in findings.yaml) what was
# reported is withdrawn: together no more than the least patience before a silence is called a hang.
_QUIET_SECONDS, _QUIET_SILENCES = 8.0, 1.2

_STAGE_CALLS = ("megatron/core/pipeline_parallel/p2p_communication.py", "deepspeed/runtime/pipe/p2p.py")
_CAUSES = {
    Activity.DATA: "data_loading",
    Activity.PREPROCESS: "data_loading",
    Activity.COMPILE: "compiling",
    Activity.SERVICE: "external_service",
    Activity.FILE_LOCK: "lock",
    Activity.LOCK: "lock",
}


@dataclass(frozen=True, slots=True)
class _StragglerVerdict:
    found: Split
    by_stacks: bool
    agreed: bool  # stacks and GPUs show the same
    elsewhere: tuple[int, ...] = ()  # ranks of other stages that are found waiting too


class StragglerDetector(Detector):
    """Meaning: one rank (or few) takes longer for each step than its peers, which wait for it; the job runs,
    at its pace.

    Evidence: how often each rank is found waiting for its peers when its stack is sampled in steady state.
    The slow one is hardly ever found waiting, all others often: an exact test over the last samples (at most
    one a step, 128 a rank), with a chance of a false alarm of one in a million a look. Beside it the GPUs:
    those that wait in NCCL are busy at low power, the slow rank's is not. Ranks are compared within their
    pipeline stage. It needs 12 samples of each rank when the others always wait, 35 when half of the time, 80
    for a quarter: a minute and more at one sample in 5 s (--stack-seconds makes them denser). Confidence is
    high where stacks and GPUs agree.

    What to do: the advice follows the cause: data loading, a GPU with low clocks, or the line of code in
    which the rank spends the time that the others spend waiting.

    False alarms: work that one rank does by design in every step (rank 0 writes metrics) and that costs the
    others a quarter of the step or more is named too. Nothing is reported of a pipeline whose layout neither
    command line nor log shows, of stages of one rank, while steps are overdue (that is a hang's matter), or
    of a rank that is slow in a backward pass under DDP on gloo, where work and waiting look the same.
    """

    name = "straggler"
    listens = (
        StackSample,
        GpuSample,
        Iteration,
        RankFound,
        LayoutReported,
        RankDigest,
        EnvironmentSeen,
        RunStarted,
        *StepSamples.listens,
    )

    def __init__(self) -> None:
        self._looks = StepSamples()
        self._places: dict[int, Placement] = {}
        self._cwd = ""  # of the command
        self._pipeline: int | None = None  # stages, by the command line or the log
        self._has_stages = False  # calls between stages were seen
        self._visible: dict[int, str] = {}  # rank -> CUDA_VISIBLE_DEVICES
        self._verdict: _StragglerVerdict | None = None
        self._verdict_at = 0.0  # when it held last

    # -- facts ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, StackSample):
            self._see_stack(at, fact)
        elif isinstance(fact, GpuSample):
            self._looks.see_gpu(fact.index, GpuWaitSample.of(at, fact))
        elif isinstance(fact, Iteration):
            if self._looks.step_reported(at, fact.iteration, bool(fact.metrics)):
                self._judge(at)
        elif isinstance(fact, RankFound):
            self._see_rank(fact)
        elif isinstance(fact, RunStarted):
            self._cwd = fact.cwd
        elif isinstance(fact, LayoutReported):
            self._pipeline = fact.stages
        elif isinstance(fact, RankDigest):
            for look in fact.looks:
                sample = RankSample.passed_on(
                    look.at, look.activity, look.where, waits=look.waits, saves=look.saves
                )
                self._looks.see_stack(fact.placement.rank, sample)
        elif isinstance(fact, EnvironmentSeen):
            if fact.rank is not None:
                self._visible[fact.rank] = dict(fact.variables).get("CUDA_VISIBLE_DEVICES", "")
        elif isinstance(fact, (SaveStarted, SaveFinished, PhaseMarked, MetricsLogged)):
            self._looks.observe(at, fact)

    def _see_rank(self, fact: RankFound) -> None:
        self._pipeline = pipeline_parallel_size(fact.command) or self._pipeline
        known, self._places[fact.placement.rank] = self._places.get(fact.placement.rank), fact.placement
        # another attempt: what was seen is of the one before
        if known is not None and known.pid != fact.placement.pid:
            self._looks.start_over()
            self._verdict, self._has_stages = None, False

    def _see_stack(self, at: float, fact: StackSample) -> None:
        if fact.rank is None or fact.parent_pid is not None or fact.main is None or not fact.main.frames:
            return
        if any(part in frame.file for frame in fact.main.frames for part in _STAGE_CALLS):
            self._has_stages = True
        self._looks.see_stack(fact.rank, RankSample.of(at, fact.main, read_stack(fact.main), self._cwd))

    def _judge(self, at: float) -> None:
        """A step was made: do the samples so far show a slow rank? Their verdict is kept for a while when
        they just miss it."""
        found = self._find()
        if found is not None:
            same = self._verdict is not None and self._verdict.found.slow == found.found.slow
            known = self._verdict.elsewhere if self._verdict is not None and same else ()
            elsewhere = tuple(sorted({*known, *self._waiting_elsewhere(found.found)}))
            self._verdict, self._verdict_at = replace(found, elsewhere=elsewhere), at
        elif self._verdict is not None and at - self._verdict_at > _VERDICT_STANDS_SECONDS:
            self._verdict = None

    def _find(self) -> _StragglerVerdict | None:
        stages = self._stages()
        if stages is None:
            return None
        by_stack = {
            rank: [look.waits for look in looks]
            for rank, looks in self._looks.stacks.items()
            if rank in self._places
        }
        by_gpu = {rank: [look.waits for look in looks] for rank, looks in self._gpus().items()}
        for stage in stages:
            stacks = split(_of(by_stack, stage), _FALSE_ALARM, _STACK_SHARE, _MOST_OWN_WAITS)
            gpu = split(_of(by_gpu, stage), _FALSE_ALARM, _GPU_SHARE, _MOST_OWN_WAITS)
            if stacks is not None and self._is_refuted(stacks, by_gpu):
                stacks = None
            if stacks is None and gpu is not None and self._contradicts(gpu):
                gpu = None
            found = stacks or gpu
            if found is not None:
                return _StragglerVerdict(
                    found,
                    stacks is not None,
                    stacks is not None and gpu is not None and stacks.slow == gpu.slow,
                )
        return None

    def _waiting_elsewhere(self, found: Split) -> Iterator[int]:
        for rank in self._places:
            looks = self._looks.stacks.get(rank)
            if not looks or rank in (*found.slow, *found.waiting):
                continue
            if statistics.fmean(look.waits for look in looks) - found.slow_ratio >= _STACK_SHARE:
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

    def _gpus(self) -> dict[int, list[GpuWaitSample]]:
        """Each rank's GPU: by its pid where the driver shows pids of our namespace, else by its local rank."""
        pids = {place.pid: rank for rank, place in self._places.items()}
        found: dict[int, list[GpuWaitSample]] = {}
        for looks in self._looks.gpus.values():
            owner = next((pids[pid] for look in reversed(looks) for pid in look.pids if pid in pids), None)
            if owner is not None:
                found[owner] = list(looks)
        if found:
            return found
        for rank, place in self._places.items():
            device = device_of(self._visible.get(rank, ""), place.local_rank)
            index = int(device) if device.isdigit() else place.local_rank
            if index in self._looks.gpus:
                found[rank] = list(self._looks.gpus[index])
        return found

    def _contradicts(self, gpu: Split) -> bool:
        """The rank that the GPUs point at waits itself: it is its GPU that is not used, by intent."""
        looks = [look.waits for rank in gpu.slow for look in self._looks.stacks.get(rank, ())]
        return bool(looks) and statistics.fmean(looks) > _MOST_OWN_WAITS / 2

    def _is_refuted(self, stacks: Split, by_gpu: dict[int, list[bool]]) -> bool:
        """Only some ranks wait for their GPU by a call that the stack shows (a timer on rank 0): then the
        GPUs are all alike."""
        waits = [look for rank in stacks.waiting for look in self._looks.stacks[rank] if look.waits]
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
        if self._verdict is not None and self._may_report(now, job):
            yield self._finding(self._verdict, job, now)

    def _may_report(self, now: float, job: JobView) -> bool:
        """Not of a job that stands still, or of which a part is stopped or gone: that is a hang's matter, or
        a death's."""
        alive = job.alive_ranks()
        if job.broken or any(rank.stopped for rank in alive) or (alive and len(alive) != len(job.ranks)):
            return False
        quiet = max(_QUIET_SECONDS, _QUIET_SILENCES * job.silences.longest("steady", job.iteration))
        return not alive or now - job.last_progress() <= quiet

    def _finding(self, verdict: _StragglerVerdict, job: JobView, now: float) -> Finding:
        found, gpus = verdict.found, self._gpus()
        place = self._looks.excess(found.slow, found.waiting)
        cause = self._cause(found, place.activity if place else None, gpus)
        confidence = None
        if verdict.agreed:
            confidence = Confidence.HIGH
        elif verdict.by_stacks or (place is not None and place.others == 0):
            confidence = Confidence.MEDIUM
        count = len(found.slow)
        eyes = "samples" if verdict.by_stacks else "samples of their GPUs"
        parts = [
            f"{format_ranks(found.slow)} "
            + numbered("[holds|hold] up the others: they are found waiting in ", count)
            + f"{format_ratio(found.waiting_ratio)} of {eyes}, "
            + numbered("[it|these]", count)
            + f" in {format_ratio(found.slow_ratio)}"
        ]
        if job.progress.step_seconds:
            step = statistics.median(job.progress.step_seconds)
            lost = format_seconds(found.share * step)
            parts.append(f"that is about {lost} of each step of {format_seconds(step)}")
        if cause == "gpu_slow":
            clocks = {rank: _clock(looks) for rank, looks in gpus.items()}
            others = statistics.median(clocks[rank] for rank in found.waiting if rank in clocks)
            runs = numbered("[its GPU runs|the GPU of the first runs] at ", count)
            slow = format_quantity(clocks[found.slow[0]] / 1e6, "MHz")
            parts.append(f"{runs}{slow}, the others at {format_quantity(others / 1e6, 'MHz')}")
        elif place is not None:
            spent = numbered("[it spends|these spend] the difference in ", count)
            parts.append(
                f"{spent}{place.where} ({place.slow} of {place.slow_of} samples, the others {place.others} of "
                f"{place.others_of})"
            )
        return finding(
            self.name,
            cause,
            subject=f"rank {found.slow[0]}" if count == 1 else JOB,
            confidence=confidence,
            ranks=found.slow,
            waiting_ranks=tuple(sorted((*found.waiting, *verdict.elsewhere))),
            since=self._looks.since(found.slow, now),
            summary="; ".join(parts),
            advice=numbered(row(self.name, cause)["advice"], count),
            evidence=tuple(self._evidence(found, gpus)),
        )

    def _cause(self, found: Split, activity: Activity | None, gpus: dict[int, list[GpuWaitSample]]) -> str:
        if activity in _CAUSES:
            return _CAUSES[activity]
        slow = [_clock(gpus[rank]) for rank in found.slow if rank in gpus]
        others = [_clock(gpus[rank]) for rank in found.waiting if rank in gpus]
        busy = [look.utilization for rank in found.slow for look in gpus.get(rank, ())]
        # A GPU that has nothing to do lowers its clocks: only one that is busy can be slow.
        if slow and others and busy and statistics.fmean(busy) > 0.5 and max(slow) < 0.9 * min(others):
            return "gpu_slow"
        return "own_code"

    def _evidence(self, found: Split, gpus: dict[int, list[GpuWaitSample]]) -> Iterator[Evidence]:
        shown = (*found.slow[:2], *found.waiting[:2])
        for rank in shown:
            looks = self._looks.stacks.get(rank)
            if looks:
                waits = sum(look.waits for look in looks)
                text = f"found waiting for its peers in {waits} of {len(looks)} samples; the last was in {looks[-1].text}"
                yield Evidence("stacks", text, looks[-1].at, rank)
        for rank in shown:
            if rank not in gpus:
                continue
            seen = gpus[rank]
            use = format_ratio(statistics.median(look.utilization for look in seen))
            power = [look.power_watts for look in seen if look.power_watts is not None]
            if power:
                use += f" at {format_quantity(statistics.median(power), 'W')}"
                if seen[-1].power_limit_watts:
                    use += f" of {format_quantity(seen[-1].power_limit_watts, 'W')}"
            yield Evidence("nvml", f"GPU busy {use} (median of {len(seen)} samples)", seen[-1].at, rank)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
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


def _clock(looks: list[GpuWaitSample]) -> float:
    return statistics.median([look.sm_clock_hertz for look in looks if look.sm_clock_hertz] or [0.0])
