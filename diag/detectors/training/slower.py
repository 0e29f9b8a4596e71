"""What changed when steps got slower: stacks, GPUs and memory before and after, and the cause that they show."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.detectors.training.straggler_samples import split
from diag.model import Evidence, numbered
from diag.model.observations import CgroupMemory, GpuSample, HostMemory
from diag.state.pace import Drop
from diag.state.residence import KINDS, WAITING, Residence
from diag.state.stack_activity import child_role
from diag.state.view import JobView
from diag.text.units import format_bytes, format_quantity, format_ranks, format_ratio

_LEAST_SAMPLES = 6  # of each rank, and of each GPU, before and after
_MORE = 0.2  # of a rank's samples; 12 samples a minute show no less
_CHANCE = 1e-3  # of calling a rank the slow one; that it got slower at that very time speaks for it already
_BUSY = 0.3
_LOWER_CLOCK = 0.9
_PRESSURE = 0.1  # of the time in which all tasks waited for memory
_GIB = 1 << 30
# nvml.h: what holds the clocks back
_REASONS = (
    (0x8 | 0x80, "hardware slowdown or power brake"),
    (0x20 | 0x40, "temperature"),
    (0x4, "power cap"),
)


@dataclass(frozen=True, slots=True)
class Cause:
    """`name` for scripts, `text` for people."""

    name: str
    text: str
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()


class SurroundedDetector(Detector):
    """One that is handed what is around the ranks: GPUs and host memory of the last half hour."""

    listens = (GpuSample, HostMemory, CgroupMemory)

    def __init__(self) -> None:
        self.gpus: dict[int, deque[tuple[float, GpuSample]]] = {}
        self.memory: deque[tuple[float, float, int]] = deque(maxlen=720)  # at, pressure, swap used

    def observe(self, at: float, fact: GpuSample | HostMemory | CgroupMemory) -> None:
        if isinstance(fact, GpuSample):
            self.gpus.setdefault(fact.index, deque(maxlen=360)).append((at, fact))
        elif isinstance(fact, HostMemory) and (fact.pressure_full_ratio is not None or fact.swap_total_bytes):
            self.memory.append(
                (at, fact.pressure_full_ratio or 0.0, fact.swap_total_bytes - fact.swap_free_bytes)
            )
        elif isinstance(fact, CgroupMemory) and fact.pressure_full_ratio is not None:
            self.memory.append((at, fact.pressure_full_ratio, -1))


def cause_of(drop: Drop, job: JobView, around: SurroundedDetector) -> Cause:
    """The first of these that the evidence shows; `unknown` says what was checked."""
    before, after = job.residence.counts(until=drop.since), job.residence.counts(since=drop.since)
    for found in (
        _straggler(drop, job), _data(before, after), _clocks(drop, around), _memory(drop, around), _writer(job),
        _elsewhere(before, after),
    ):  # fmt: skip
        if found is not None:
            return found
    samples = min((sum(counts.values()) for counts in after.values()), default=0)
    looked = [f"stacks of {len(after)} ranks ({samples} samples each)"] if after else []
    looked += [f"clocks of {len(around.gpus)} GPUs"] if around.gpus else []
    looked += ["memory pressure"] if around.memory else []
    return Cause(
        "unknown", f"no cause was found in {', '.join(looked)}" if looked else "nothing could be checked"
    )


def _enough(counts: Mapping[int, Counter[str]]) -> bool:
    return bool(counts) and all(sum(each.values()) >= _LEAST_SAMPLES for each in counts.values())


def _straggler(drop: Drop, job: JobView) -> Cause | None:
    waits, before = job.residence.waits(since=drop.since), job.residence.waits(until=drop.since)
    found = split(waits, _CHANCE, 0.25, 0.6)
    if found is None:
        return None
    known = split(before, _CHANCE, 0.25, 0.6)
    if known is not None and known.slow == found.slow:
        return None
    holds, it = numbered("[holds|hold] up the others,[it|these]", len(found.slow)).split(",")
    text = (
        f"since then {format_ranks(found.slow)} {holds}, which are found waiting in {format_ratio(found.waiting_ratio)} of samples "
        f"({it} in {format_ratio(found.slow_ratio)})"
    )
    return Cause("straggler", text, found.slow, found.waiting)


def _data(before: Mapping[int, Counter[str]], after: Mapping[int, Counter[str]]) -> Cause | None:
    if not _enough(before) or not _enough(after):
        return None
    more = {
        rank: _share(after[rank], "data") - _share(before[rank], "data") for rank in after if rank in before
    }
    slow = tuple(sorted(rank for rank, share in more.items() if share >= _MORE))
    if not slow:
        return None
    then, now = (
        Residence.shares(counts[rank] for rank in slow).get("data", 0.0) for counts in (before, after)
    )
    text = (
        f"{format_ranks(slow)} {numbered('[waits|wait]', len(slow))} for batches in {format_ratio(now)} "
        f"of samples now ({format_ratio(then)} before)"
    )
    return Cause("data_loading", text, () if len(slow) == len(after) else slow)


def _clocks(drop: Drop, around: SurroundedDetector) -> Cause | None:
    slower = []
    for index, seen in sorted(around.gpus.items()):
        then, now = (
            [gpu.sm_clock_hertz for at, gpu in seen
             if (at >= drop.since) is later and gpu.sm_clock_hertz and (gpu.utilization_ratio or 0.0) > _BUSY]
            for later in (False, True)
        )  # fmt: skip
        if len(then) < _LEAST_SAMPLES or len(now) < _LEAST_SAMPLES:
            continue
        old, new = statistics.median(then), statistics.median(now)
        if new < _LOWER_CLOCK * old:
            slower.append((index, old, new, seen[-1][1]))
    if not slower:
        return None
    index, old, new, gpu = slower[0]
    bits = gpu.throttle_reasons or 0
    why = next((f" ({word})" for mask, word in _REASONS if bits & mask), "")
    which = ", ".join(str(each[0]) for each in slower)
    before, after = format_quantity(old / 1e6, "MHz"), format_quantity(new / 1e6, "MHz")
    text = f"the clock of GPU{'s' if len(slower) > 1 else ''} {which} fell from {before} to {after}{why}"
    state = [after]
    if gpu.temperature_celsius is not None:
        state.append(format_quantity(gpu.temperature_celsius, "°C"))
    if gpu.power_watts is not None:
        state.append(format_quantity(gpu.power_watts, "W"))
    excerpt = f"GPU {index}: {', '.join(state)}, throttle reasons {bits:#x}"
    return Cause("gpu_clocks", text, evidence=(Evidence("nvml", excerpt, around.gpus[index][-1][0]),))


def _memory(drop: Drop, around: SurroundedDetector) -> Cause | None:
    then, now = (
        [item for item in around.memory if (item[0] >= drop.since) is later] for later in (False, True)
    )
    if not now:
        return None
    pressure = statistics.median(item[1] for item in now)
    usual = statistics.median([item[1] for item in then] or [0.0])
    if pressure >= _PRESSURE and pressure >= 2 * usual:
        waits = f"tasks wait for memory in {format_ratio(pressure)} of the time (PSI full)"
        return Cause("memory_pressure", waits)
    old, new = ([item[2] for item in part if item[2] >= 0] for part in (then, now))
    if old and new and new[-1] - old[-1] > _GIB:
        return Cause("memory_pressure", f"{format_bytes(new[-1] - old[-1])} more are swapped out than before")
    return None


def _writer(job: JobView) -> Cause | None:
    writers = [
        rank.rank for rank in job.alive_ranks()
        if any(child_role(sample) == "checkpoint writer" and rank.tree is not None
               and any(child.pid == pid for child in rank.tree.children) for pid, (_, sample) in rank.child_stacks.items())
    ]  # fmt: skip
    if writers:
        text = f"child processes of {format_ranks(writers)} write a checkpoint during the training"
        return Cause("checkpoint_writer", text, tuple(writers) if len(writers) < len(job.ranks) else ())
    return None


def _elsewhere(before: Mapping[int, Counter[str]], after: Mapping[int, Counter[str]]) -> Cause | None:
    """Each rank is found in another part of the step more often than before. One that is not is who the
    others wait for."""
    if not _enough(before) or not _enough(after) or set(after) - set(before):
        return None

    def more(kind: str) -> float:
        return min(_share(after[rank], kind) - _share(before[rank], kind) for rank in after)

    kind = max(KINDS, key=more)
    if more(kind) < _MORE or (kind in WAITING and len(after) < 2):
        return None
    then, now = Residence.shares(before.values()), Residence.shares(after.values())
    text = f"all ranks are found in {kind} in {format_ratio(now[kind])} of samples ({format_ratio(then.get(kind, 0.0))} before)"
    return Cause("communication" if kind == "collective" else kind, text)


def _share(counts: Counter[str], kind: str) -> float:
    return counts[kind] / max(1, sum(counts.values()))


def format_shares(counts: Mapping[int, Counter[str]]) -> Iterator[str]:
    for kind, share in Residence.shares(counts.values()).items():
        if share >= 0.01:
            yield f"{kind} {format_ratio(share)}"
