"""The finding that names a straggler: its cause, its sentence, and the samples that it rests on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diag.detectors.findings import finding
from diag.detectors.training.core_shares import Starved
from diag.detectors.training.recorders import in_words
from diag.detectors.training.straggler_samples import Excess, GpuWaitSample, RankSample, Split
from diag.model import JOB, Confidence, Evidence, Finding, numbered
from diag.state.arrivals import Latecomer
from diag.state.stack_activity import Activity
from diag.text.units import format_quantity, format_ranks, format_ratio, format_seconds

_CAUSES = {
    Activity.DATA: "data_loading",
    Activity.PREPROCESS: "data_loading",
    Activity.COMPILE: "compiling",
    Activity.SERVICE: "external_service",
    Activity.FILE_LOCK: "lock",
    Activity.LOCK: "lock",
}


@dataclass(frozen=True, slots=True)
class StragglerVerdict:
    """`eyes`: whose samples `found` counts, stacks or gpus; empty where the ranks only came to collectives in this
    order."""

    found: Split
    eyes: str
    agreed: bool  # two channels show the same
    elsewhere: tuple[int, ...] = ()  # ranks of other stages that are found waiting too
    latecomer: Latecomer | None = None
    starved: tuple[Starved, ...] = ()  # of the slow ranks


@dataclass(frozen=True, slots=True)
class Around:
    """What was sampled of the ranks, where the slow ones are found more often, and how long a step takes."""

    stacks: Mapping[int, Sequence[RankSample]]
    gpus: Mapping[int, Sequence[GpuWaitSample]]
    uses_gpus: bool
    place: Excess | None
    step_seconds: float | None


def straggler_finding(verdict: StragglerVerdict, around: Around, since: float) -> Finding:
    found, place = verdict.found, around.place
    cause = _cause(verdict, around)
    confidence = None
    if verdict.agreed:
        confidence = Confidence.HIGH
    elif verdict.eyes != "gpus" or (place is not None and place.others == 0):
        confidence = Confidence.MEDIUM
    count = len(found.slow)
    return finding(
        "straggler",
        cause,
        subject=f"rank {found.slow[0]}" if count == 1 else JOB,
        confidence=confidence,
        ranks=found.slow,
        waiting_ranks=tuple(sorted((*found.waiting, *verdict.elsewhere))),
        since=since,
        summary="; ".join(_sentences(verdict, cause, around)),
        count=count,
        evidence=tuple(_evidence(verdict, around)),
    )


def _sentences(verdict: StragglerVerdict, cause: str, around: Around) -> Iterator[str]:
    found, count = verdict.found, len(verdict.found.slow)
    signs = [] if verdict.latecomer is None else [f"it came {in_words(verdict.latecomer)}"]
    if verdict.eyes:
        signs.append(
            f"they are found waiting in {format_ratio(found.waiting_ratio)} of "
            f"{'samples of their GPUs' if verdict.eyes == 'gpus' else 'samples'}, "
            + numbered("[it|these]", count)
            + f" in {format_ratio(found.slow_ratio)}"
        )
    yield (
        f"{format_ranks(found.slow)} "
        + numbered("[holds|hold] up the others: ", count)
        + ", and ".join(signs)
    )
    if around.step_seconds and verdict.eyes:
        lost = format_seconds(found.share * around.step_seconds)
        yield f"that is about {lost} of each step of {format_seconds(around.step_seconds)}"
    place = around.place
    if cause == "cpu_contention":
        yield str(verdict.starved[0])
    elif cause == "gpu_slow":
        clocks = {rank: clock(looks) for rank, looks in around.gpus.items()}
        others = statistics.median(clocks[rank] for rank in found.waiting if rank in clocks)
        runs = numbered("[its GPU runs|the GPU of the first runs] at ", count)
        slow = format_quantity(clocks[found.slow[0]] / 1e6, "MHz")
        yield f"{runs}{slow}, the others at {format_quantity(others / 1e6, 'MHz')}"
    elif place is not None:
        spent = numbered("[it spends|these spend] the difference in ", count)
        where = f"{place.own}, inside {place.where}" if place.own else place.where
        yield (
            f"{spent}{where} ({place.slow} of {place.slow_of} samples, the others {place.others} of "
            f"{place.others_of})"
        )


def _cause(verdict: StragglerVerdict, around: Around) -> str:
    found, activity = verdict.found, around.place.activity if around.place else None
    if verdict.starved:
        return "cpu_contention"
    if activity in _CAUSES:
        return _CAUSES[activity]
    slow = [clock(around.gpus[rank]) for rank in found.slow if rank in around.gpus]
    others = [clock(around.gpus[rank]) for rank in found.waiting if rank in around.gpus]
    busy = [look.utilization for rank in found.slow for look in around.gpus.get(rank, ())]
    # A GPU that has nothing to do lowers its clocks: only one that is busy can be slow.
    if slow and others and busy and statistics.fmean(busy) > 0.5 and max(slow) < 0.9 * min(others):
        return "gpu_slow"
    return "own_code"


def _evidence(verdict: StragglerVerdict, around: Around) -> Iterator[Evidence]:
    for starved in verdict.starved[:2]:
        yield starved.evidence()
    shown = (*verdict.found.slow[:2], *verdict.found.waiting[:2])
    for rank in shown:
        looks = around.stacks.get(rank)
        if looks:
            waits = sum(look.waits_for_peers(around.uses_gpus) for look in looks)
            text = f"found waiting for its peers in {waits} of {len(looks)} samples; the last was in {looks[-1].text}"
            yield Evidence("stacks", text, looks[-1].at, rank)
    for rank in shown:
        if rank not in around.gpus:
            continue
        seen = around.gpus[rank]
        use = format_ratio(statistics.median(look.utilization for look in seen))
        power = [look.power_watts for look in seen if look.power_watts is not None]
        if power:
            use += f" at {format_quantity(statistics.median(power), 'W')}"
            if seen[-1].power_limit_watts:
                use += f" of {format_quantity(seen[-1].power_limit_watts, 'W')}"
        yield Evidence("nvml", f"GPU busy {use} (median of {len(seen)} samples)", seen[-1].at, rank)


def clock(looks: Sequence[GpuWaitSample]) -> float:
    return statistics.median([look.sm_clock_hertz for look in looks if look.sm_clock_hertz] or [0.0])
