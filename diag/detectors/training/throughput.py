"""Have steps become slower than they were in the same job, and is one part of a step most of it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diag.detectors.training.slower import Cause, Surroundings, cause_of, format_shares
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import CgroupMemory, GpuSample, HostMemory
from diag.state.pace import Drop
from diag.state.view import JobView
from diag.text.units import format_ratio, format_seconds

_ADVICE = {
    "straggler": "See that rank's stack (`diag flame RANK`, `diag dump --all-ranks`) and its GPU; `straggler` names the line "
    "once there are samples enough.",
    "data_loading": "Look at the storage the data come from and at the CPU load of the host; more --dataloader_num_workers and "
    "--dataloader_prefetch_factor hide slow reads.",
    "gpu_clocks": "See `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` on that GPU: cooling, a power cap (nvidia-smi -pl), a "
    "brake of the power supply. Take the node out if it stays.",
    "memory_pressure": "Host memory is short: see what grew (`diag dump`: resident memory a rank, page cache, swap), use fewer "
    "DataLoader workers, or raise the container's limit.",
    "checkpoint_writer": "An asynchronous save shares CPU, storage and memory with the training: it should pass. Save less "
    "often (--save_steps, --save_interval) or with fewer writers if it does not.",
    "communication": "All ranks wait longer for each other: look for a port that went down or lost speed (`ib-port`), "
    "congestion by other jobs, and ranks on other nodes that are slow (`diag dump` there).",
    "compile": "They compile again and again: look for new shapes (TORCH_LOGS=recompiles), pad or bucket lengths.",
    "unknown": "Where the data have longer sequences from here on (a curriculum, sorted lengths), this is as it should be. "
    "Else compare `diag flame all` with an earlier one, and see other processes on the node (top, nvidia-smi).",
}


class ThroughputDropDetector:
    """Meaning: steps take longer than they did in the same run, and have for a minute or more.

    Evidence: seconds a step over laps of five seconds and more, by the arrival of the lines that report
    steps, without saves, evaluations and stops (Megatron's own `elapsed time per iteration` where it is
    printed). Told are 25 % and more; how noise is told from a drop, and what was measured, stands in
    diag/state/pace.py: one alarm in 5,000 hours of healthy jobs, 60-100 s from the change for 1.5 times and
    more. What changed at that time in stacks, GPU clocks and memory gives the cause.

    What to do: the advice follows the cause: straggler, data_loading, gpu_clocks, memory_pressure,
    checkpoint_writer, communication, compile and other parts of a step, or unknown.

    False alarms: data with longer sequences from some step on look the same. Without a cause, less than 1.45
    times and for less than five minutes it is an info. A slow rise (a leak) is not told: laps are compared
    with all before, and half of them rise too.
    """

    name = "throughput-drop"
    listens = Surroundings.listens

    def __init__(self) -> None:
        self._around = Surroundings()
        self._known: tuple[float, int, Cause] | None = None  # of the drop since then, at so many laps

    def observe(self, at: float, fact: GpuSample | HostMemory | CgroupMemory) -> None:
        self._around.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        drop = job.progress.steps.pace.drop
        if drop is None:
            self._known = None
            return
        cause = self._cause(drop, job)
        grave = drop.matters or cause.word != "unknown"
        shares = ", ".join(format_shares(job.residence.counts(since=drop.since)))
        evidence = [
            Evidence(
                "output",
                f"{format_seconds(drop.before)} a step up to iteration {drop.iteration}, {format_seconds(drop.after)} in "
                f"the {drop.steps} steps since",
                drop.since,
            ),
            *cause.evidence,
        ]
        if shares:
            evidence.append(Evidence("stacks", f"all ranks since then: {shares}", now))
        yield Finding(
            id="throughput-drop",
            subject=JOB,
            severity=Severity.WARNING if grave else Severity.INFO,
            confidence=Confidence.LOW if cause.word == "unknown" else Confidence.MEDIUM,
            summary=f"steps take {format_seconds(drop.after)} since iteration {drop.iteration}, {drop.ratio:.2g} times the "
            f"{format_seconds(drop.before)} before ({drop.steps} steps, {format_seconds(drop.seconds)}, and still); {cause.text}",
            advice=_ADVICE.get(cause.word, _ADVICE["unknown"]),
            since=drop.since,
            cause=cause.word,
            ranks=cause.ranks,
            waiting_ranks=cause.waiting,
            evidence=tuple(evidence),
        )

    def _cause(self, drop: Drop, job: JobView) -> Cause:
        """Looked for anew with each lap until it is found: then it stays, as does the drop."""
        known, laps = self._known, job.progress.steps.pace.laps
        if known is None or known[0] != drop.since or (known[2].word == "unknown" and known[1] != laps):
            known = self._known = (drop.since, laps, cause_of(drop, job, self._around))
        return known[2]

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


_LEAST = 40  # samples of each rank
_MOST_SHARE = 0.3
_GPU_IDLE = 0.8  # a GPU that is busy for longer has its work: the thread only runs ahead of it
_GPU_SAMPLES = 12


class SlowDetector:
    """Meaning: one part of each step takes so much of it that the GPUs wait, from the start on.

    Evidence: of the last samples of every rank (40 at least, half an hour at most) 30 % and more are in the
    same part: waiting for a batch, or the optimizer's work on the CPU. Where there are GPUs, none is in use
    for more than 80 % of the time. There is no normal speed to compare with: what is not found here is not
    said to be fast. `GET /ranks` has all shares.

    What to do: data: more DataLoader workers, quicker storage, tokenising beforehand. CPU optimizer: offload
    less.

    False alarms: a job that is meant to be bound by its data (a rollout, streaming). CPU offload is an info:
    it was asked for.
    """

    name = "slow"
    listens = Surroundings.listens

    def __init__(self) -> None:
        self._around = Surroundings()

    def observe(self, at: float, fact: GpuSample | HostMemory | CgroupMemory) -> None:
        self._around.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.phase not in ("steady", "training") or job.broken:
            return
        counts = job.residence.counts()
        if (
            not counts
            or any(sum(each.values()) < _LEAST for each in counts.values())
            or set(job.ranks) - set(counts)
        ):
            return
        busy = self._busy(job.residence.oldest())
        if busy is not None and busy > _GPU_IDLE:
            return
        for part in (_DATA, _CPU):
            share = min(each[part.kind] / sum(each.values()) for each in counts.values())
            if share >= _MOST_SHARE:
                yield _slow(part, share, busy, job, now)

    def _busy(self, since: float) -> float | None:
        """How busy the busiest GPU was: the node may have others that the job does not use. None without
        GPUs."""
        seen = [
            [gpu.utilization_ratio for at, gpu in looks if at >= since and gpu.utilization_ratio is not None]
            for looks in self._around.gpus.values()
        ]
        return max((sum(each) / len(each) for each in seen if len(each) >= _GPU_SAMPLES), default=None)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


@dataclass(frozen=True, slots=True)
class _Part:
    kind: str
    cause: str
    words: str
    advice: str
    severity: Severity


_DATA = _Part(
    "data", "data_loading", "waits for its batches",
    "More --dataloader_num_workers (4 to 8 a rank, with CPU cores for them) and --dataloader_prefetch_factor; tokenise "
    "beforehand (--lazy_tokenize false, `swift export --to_cached_dataset true`), pack short samples (--packing true), and put "
    "the data on local or quicker storage.", Severity.WARNING,
)  # fmt: skip
_CPU = _Part(
    "cpu_optimizer", "cpu_optimizer", "is in the optimizer's step on the CPU",
    "The optimizer works on the CPU: where GPU memory allows, offload less (--optimizer_cpu_offload false or a lower "
    "--optimizer_offload_fraction; DeepSpeed: zero2 or zero3 without offload_optimizer), give each rank more cores "
    "(OMP_NUM_THREADS), and larger global batches so that it runs less often.", Severity.INFO,
)  # fmt: skip


def _slow(part: _Part, share: float, busy: float | None, job: JobView, now: float) -> Finding:
    counts, step = job.residence.counts(), job.progress.steps.now()
    of_step = f", about {format_seconds(share * step)} of each step of {format_seconds(step)}" if step else ""
    gpus = f"; the busiest GPU is in use for {format_ratio(busy)} of the time" if busy is not None else ""
    samples = min(sum(each.values()) for each in counts.values())
    return Finding(
        id="slow", subject=JOB, severity=part.severity, confidence=Confidence.MEDIUM if busy is None else Confidence.HIGH,
        summary=f"every rank {part.words} in {format_ratio(share)} of its samples or more{of_step} ({samples} samples a rank){gpus}",
        advice=part.advice, since=job.residence.oldest(), cause=part.cause,
        evidence=(Evidence("stacks", "all ranks: " + ", ".join(format_shares(counts)), now),), holds_seconds=120.0,
    )  # fmt: skip
