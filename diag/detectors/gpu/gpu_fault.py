"""A GPU failed, or a program failed on it: Xids of the driver and CUDA's errors joined, causes apart from
consequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diag.detectors.gpu.cuda_errors import CORE_DUMP, CUDA_ERRORS, CudaError
from diag.detectors.gpu.evidence import mattered, victim_of_line, when
from diag.detectors.last_words import heard
from diag.knowledge.xids import Xid, xid_of
from diag.knowledge.xids import advice as action_advice
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import CudaErrorRaised, GpuDumpStarted
from diag.state.gpufaults import XidEvent, same_bus
from diag.state.gpustate import gpu_of_rank, rank_of_bus
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_ranks

_TOGETHER_SECONDS = 5.0  # ranks that fail alike within it failed of the same input
_AFTER_DUMP_SECONDS = 120.0  # one with the memory of a whole GPU is written for that long
_MOST_DUMPS = 4096
_ORDER = ("hardware", "application", "consequence", "notice")


@dataclass(frozen=True, slots=True)
class _Error:
    at: float
    fact: CudaErrorRaised
    rank: RankView | None
    means: CudaError

    @property
    def number(self) -> int | None:
        """The rank's; its log may come before it is found."""
        return self.fact.rank if self.rank is None else self.rank.rank


class GpuFaultDetector:
    """Meaning: the driver reported an error of a GPU or NVSwitch (Xid, SXid), or a CUDA call of a rank
    failed.

    Evidence: the kernel log, NVML's events, the program's own last words. An Xid that follows from something
    else (43 and 45 after a program's error, 154 after any) is told as a consequence, never as the cause.
    cause: xid_N or sxid_N where the hardware is to blame, and CUDA's error in short (device_assert,
    illegal_address ...) where the program is.

    What to do: by the catalogue of Xids: start the job again, reset the GPU, reboot, or take the node out. An
    Xid 13 or 31 is the program's, unless it comes again and again on one GPU with programs that are known to
    be sound.

    False alarms: an error that the program catches and survives is not reported, nor is an Xid of a GPU that
    the job does not use. A GPU that the job uses may have been hit by a neighbour's program; then no rank
    fails.
    """

    name = "gpu-fault"
    listens = (GpuDumpStarted,)

    def __init__(self) -> None:
        self._dumps: list[tuple[float, GpuDumpStarted]] = []

    def observe(self, at: float, fact: GpuDumpStarted) -> None:
        """The job's state keeps what else is needed."""
        if len(self._dumps) < _MOST_DUMPS:
            self._dumps.append((at, fact))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        events = _relevant(job)
        broken: set[int] = set()
        for bus in dict.fromkeys(event.fact.pci_bus_id for event, _ in events):
            mine = [(event, ranks) for event, ranks in events if event.fact.pci_bus_id == bus]
            ranks = tuple(sorted({rank for _, users in mine for rank in users}))
            root = min(mine, key=lambda item: (_ORDER.index(item[0].kind), item[0].at))[0]
            if root.kind == "hardware":
                broken.update(ranks)
                yield _by_hardware(root, [event for event, _ in mine], ranks, job)
        yield from _by_switch(job)
        yield from self._by_program(events, broken, now, job)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def _by_program(
        self, events: list[tuple[XidEvent, tuple[int, ...]]], broken: set[int], now: float, job: JobView
    ) -> Iterator[Finding]:
        errors = [
            error
            for error in _errors(now, job, self._dumps)
            if error.rank is None or error.rank.rank not in broken
        ]
        if errors:
            yield _by_error(errors, events, job)
            return
        for event, ranks in events:  # the log says nothing: the driver's word alone
            meaning = xid_of(event.xid)
            failed = tuple(rank for rank in ranks if rank not in broken and _may_have_failed_of_it(rank, job))
            if event.kind == "application" and failed:
                yield _by_xid_alone(event, meaning, failed, job)
                return


def _relevant(job: JobView) -> list[tuple[XidEvent, tuple[int, ...]]]:
    """Xids of the job's GPUs since their ranks started, each with its ranks; where no GPU is known, those of
    any, without."""
    found = []
    for event in job.gpu_faults.xids:
        named = _ranks_named(event, job)
        if event.pids and not named and event.fact.host_pids and event.kind != "hardware":
            continue  # the program of a neighbour on that GPU
        users = {*rank_of_bus(event.fact.pci_bus_id, job), *named}
        since = [rank for rank in users if rank not in job.ranks or event.last_at >= job.ranks[rank].found_at]
        if since or (not users and _may_be_ours(event, job)):
            found.append((event, tuple(sorted(since))))
    return found


def _ranks_named(event: XidEvent, job: JobView) -> set[int]:
    return {rank for pid in event.pids if (rank := job.ranks.rank_of_pid(pid)) is not None}


def _may_be_ours(event: XidEvent, job: JobView) -> bool:
    """Whose GPU it is cannot be told. An NVLink fault of a neighbour's GPU hits ours too: they share the
    switches."""
    if xid_of(event.xid).part == "nvlink" and event.kind == "hardware":
        return True
    placed = any(gpu_of_rank(rank, job) is not None for rank in job.ranks.values())
    return (
        not placed
        and bool(job.ranks)
        and (bool(job.returncode) or any(rank.failed for rank in job.ranks.values()))
    )


def _may_have_failed_of_it(number: int, job: JobView) -> bool:
    """After a fault of its own every CUDA call of a program fails: who dies of something else, by its own
    words, had none."""
    rank = job.ranks.get(number)
    if rank is None or not rank.failed:
        return False
    error = heard(rank, job, alone=True).error
    return not error or any(word in error.lower() for word in ("cuda", "gpu", "nccl", "device"))


def _by_hardware(root: XidEvent, events: list[XidEvent], ranks: tuple[int, ...], job: JobView) -> Finding:
    xid = xid_of(root.xid)
    slot, name = _slot(root, job)
    more = sorted({event.xid for event in events} - {root.xid})
    beside = f"; Xid {', '.join(map(str, more))} beside it" if more else ""
    wants = _recovery(root, job)
    whose = f" of {format_ranks(ranks)}" if ranks else ""
    advice = action_advice(xid.action, slot)
    return Finding(
        id="gpu-fault",
        subject=name,
        severity=Severity.CRITICAL,
        ranks=ranks,
        since=root.at,
        cause=f"xid_{root.xid}",
        final=True,
        confidence=Confidence.HIGH if ranks else Confidence.MEDIUM,
        summary=f"{name}{whose} at {root.fact.pci_bus_id or 'an unknown address'} failed {when(job)}: Xid {root.xid}, "
        f"{xid.meaning}{beside}{wants}",
        advice=f"{advice} Resume the job from the last checkpoint on other GPUs.",
        evidence=tuple(_evidence(event) for event in [root, *(one for one in events if one is not root)][:4]),
    )


def _by_switch(job: JobView) -> Iterator[Finding]:
    told: dict[str, tuple[float, str, int]] = {}
    for at, fact in job.gpu_faults.sxids:
        if fact.fatal and (job.run.started_at is None or at >= job.run.started_at):
            told.setdefault(fact.pci_bus_id, (at, fact.text, fact.sxid))
    for bus, (at, text, number) in told.items():
        yield Finding(
            id="gpu-fault",
            subject=f"NVSwitch {bus}",
            severity=Severity.CRITICAL,
            confidence=Confidence.MEDIUM,
            since=at,
            cause=f"sxid_{number}",
            final=True,
            summary=f"the NVSwitch at {bus} failed {when(job)}: SXid {number}, fatal; transfers between the node's GPUs stop",
            advice=action_advice("links"),
            evidence=(Evidence("kmsg", text, at),),
        )


def _errors(now: float, job: JobView, dumps: list[tuple[float, GpuDumpStarted]]) -> list[_Error]:
    """The first error of each rank that mattered, earliest first."""
    found = []
    for told in job.gpu_faults.errors.values():
        for at, fact in told:
            means = CUDA_ERRORS.get(fact.error)
            rank = victim_of_line(fact.rank, None, job)
            if means is not None and means.cause == "launch_failure" and _after_a_dump(at, fact, dumps):
                means = CORE_DUMP
            if means is None or job.gpu_faults.finding_of(fact.rank, job.progress.iteration_at) == "cuda-oom":
                continue
            if any(mattered(since, one.text, rank, now, job) for since, one in told) and not _is_aftermath(
                at, means, rank, job
            ):
                found.append(_Error(at, fact, rank, means))
                break
    return sorted(found, key=lambda error: error.at)


def _after_a_dump(at: float, fact: CudaErrorRaised, dumps: list[tuple[float, GpuDumpStarted]]) -> bool:
    """The driver's line has no rank of its own: in the log of several ranks it may be any of them."""
    return any(
        0.0 <= at - since <= _AFTER_DUMP_SECONDS and dump.rank in (None, fact.rank) for since, dump in dumps
    )


def _is_aftermath(at: float, means: CudaError, rank: RankView | None, job: JobView) -> bool:
    """A rank that ends takes its memory along: its peers' transfers over NVLink then fail."""
    return means.cause == "peer_memory" and any(
        one is not rank and one.failed and (one.exited_at or 0.0) <= at for one in job.ranks.values()
    )


def _by_error(errors: list[_Error], events: list[tuple[XidEvent, tuple[int, ...]]], job: JobView) -> Finding:
    first = errors[0]
    alike = [
        one
        for one in errors
        if one.means.cause == first.means.cause and one.at - first.at <= _TOGETHER_SECONDS
    ]
    ranks = tuple(sorted({one.number for one in alike if one.number is not None}))
    later = tuple(sorted({one.number for one in errors if one.number is not None} - set(ranks)))
    means = first.means
    mine = [event for event, users in events if set(users) & set(ranks)]
    follows = sorted(
        {event.xid for event in mine if event.xid in means.follows or event.kind == "consequence"}
    )
    xids = f"; Xid {', '.join(map(str, follows))} of the driver follows from it" if follows else ""
    whose = "the GPU or its links are to blame" if means.hardware else "the program is to blame, not the GPU"
    if means is CORE_DUMP:
        whose = "where somebody asked for it, neither the program nor the GPU is to blame"
    who = format_ranks(ranks) if ranks else "a rank"
    check = _assertion(first, job)
    after = f"; {format_ranks(later)} failed after it" if later else ""
    return Finding(
        id="gpu-fault",
        subject=JOB,
        severity=Severity.CRITICAL,
        ranks=ranks,
        waiting_ranks=later,
        since=first.at,
        cause=means.cause,
        confidence=Confidence.HIGH
        if follows or check or (first.rank is not None and first.rank.failed)
        else Confidence.MEDIUM,
        summary=f'a CUDA call of {who} failed {when(job)}: "{first.fact.error}"{check}: {means.meaning}; {whose}{xids}{after}',
        advice=means.advice,
        final=True,
        evidence=(
            *(Evidence("output", one.fact.text, one.at, one.number) for one in alike[:3]),
            *(_evidence(event) for event in mine[:3]),
        ),
    )


def _by_xid_alone(event: XidEvent, meaning: Xid, ranks: tuple[int, ...], job: JobView) -> Finding:
    unknown = ""
    if event.pids and not _ranks_named(event, job):
        unknown = f". Whether pid {event.pids[0]} in its line, of the host, is this job's cannot be told from in here"
    return Finding(
        id="gpu-fault",
        subject=JOB,
        severity=Severity.CRITICAL,
        confidence=Confidence.LOW,
        ranks=ranks,
        since=event.at,
        cause=f"xid_{event.xid}",
        final=True,
        summary=f"the driver reports Xid {event.xid} for {format_ranks(ranks)} {when(job)}: {meaning.meaning}; most often the "
        f"program is to blame, and its log does not say more{unknown}",
        advice=f"{action_advice(meaning.action)} Run once with CUDA_LAUNCH_BLOCKING=1 to see the kernel; if it comes again on the same "
        "GPU with programs that are known to be sound, have the GPU examined.",
        evidence=(_evidence(event),),
    )


def _assertion(first: _Error, job: JobView) -> str:
    """The failed check in the kernel's own words."""
    for _, fact in job.gpu_faults.errors.get(first.fact.rank, ()):
        begin = fact.text.find("Assertion `")
        if begin >= 0:
            return f" ({fact.text[begin : begin + 160].removesuffix(' failed.')})"
    return ""


def _slot(event: XidEvent, job: JobView) -> tuple[str, str]:
    """The GPU's number for nvidia-smi ("" where it is not known), and its name in a sentence."""
    for index, (_, gpu) in sorted(job.machine.gpus.items()):
        if same_bus(gpu.pci_bus_id, event.fact.pci_bus_id):
            return str(index), f"GPU {index}"
    return "", f"GPU {event.fact.pci_bus_id or '?'}"


def _recovery(event: XidEvent, job: JobView) -> str:
    for _, health in job.machine.gpu_health.values():
        if same_bus(health.pci_bus_id, event.fact.pci_bus_id) and health.recovery_action not in ("", "none"):
            return f"; the driver asks for: {health.recovery_action.replace('_', ' ')}"
    return ""


def _evidence(event: XidEvent) -> Evidence:
    return Evidence(event.fact.origin, event.fact.text, event.at, event.fact.rank)
