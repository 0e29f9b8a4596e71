"""A GPU failed, or a program failed on it: Xids of the driver and CUDA's errors joined, causes apart from
consequences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, load, who, with_words
from diag.detectors.gpu.evidence import mattered, victim_of_line, when
from diag.detectors.last_words import heard
from diag.knowledge.xids import Xid, xid_of, xids
from diag.knowledge.xids import advice as action_advice
from diag.model import Confidence, Evidence, Finding, Severity
from diag.model.observations import CudaErrorRaised, GpuDumpStarted
from diag.state.gpufaults import XidEvent, same_bus
from diag.state.gpustate import gpu_of_rank, rank_of_bus
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_ranks

_TOGETHER_SECONDS = 5.0  # ranks that fail alike within it failed of the same input
_AFTER_DUMP_SECONDS = 120.0  # one with the memory of a whole GPU is written for that long
_MOST_DUMPS = 4096
_REPEAT = (
    "Run once with CUDA_LAUNCH_BLOCKING=1 to see the kernel; if it comes again on the same GPU with programs that are known to be "
    "sound, have the GPU examined."
)
# Checks of torch's kernels (1.9-2.13) that are on no index:
#   Assertion `input_val >= zero && input_val <= one` failed.        Assertion `probability tensor contains either `inf`, `nan` ...
_OF_VALUE = re.compile(
    r"(?i)Assertion `.{0,40}(?:input_val|\bval\b|probab|finite|\bnan\b|\binf\b|\bsum\b|cdf|dist)"
)
_ORDER = ("hardware", "application", "consequence", "notice")


@dataclass(frozen=True, slots=True)
class _Error:
    """A CUDA call that failed, and what cuda_errors.yaml has about it."""

    at: float
    fact: CudaErrorRaised
    rank: RankView | None
    known: Mapping[str, Any]

    @property
    def cause(self) -> str:
        return cast("str", self.known["cause"])

    @property
    def meaning(self) -> str:
        """What happened, and what is to blame."""
        blame = "the program is to blame, not the GPU"
        if self.known.get("hardware"):
            blame = "the GPU or its links are to blame"
        elif self.cause == "core_dump":
            blame = "where it was asked for, neither the program nor the GPU is to blame"
        elif self.known.get("undecided"):
            blame = "whether the program or the GPU is to blame, it does not tell"
        return f"{self.known['meaning']}; {blame}"

    @property
    def number(self) -> int | None:
        """The rank's; its log may come before it is found."""
        return self.fact.rank if self.rank is None else self.rank.rank


class GpuFaultDetector(Detector):
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
        for event, ranks in events:  # the log shows nothing: the driver's report alone
            meaning = xid_of(event.xid)
            failed = tuple(rank for rank in ranks if rank not in broken and _may_have_failed_of_it(rank, job))
            if event.kind == "application" and failed:
                yield _by_xid_alone(event, meaning, failed, job)
                return
        if events and not broken and not job.ranks and job.log.ended is not None and job.run.end_unknown:
            yield from _by_excerpt([event for event, _ in events])


def _relevant(job: JobView) -> list[tuple[XidEvent, tuple[int, ...]]]:
    """Xids of the job's GPUs since their ranks started, each with its ranks; where no GPU is known, those of
    any, without."""
    found = []
    for event in job.gpu_faults.xids:
        named = _ranks_named(event, job)
        if event.pids and not named and event.fact.host_pids and event.kind != "hardware":
            continue  # the program of a neighbour on that GPU
        users = named
        if not named or event.kind == "hardware":  # else the program's alone: ranks may share a GPU
            users = {*rank_of_bus(event.fact.pci_bus_id, job), *named}
        since = [rank for rank in users if rank not in job.ranks or event.last_at >= job.ranks[rank].found_at]
        if since or (not users and _may_be_ours(event, job)):
            found.append((event, tuple(sorted(since))))
    return found


def _ranks_named(event: XidEvent, job: JobView) -> set[int]:
    return {rank for pid in event.pids if (rank := job.ranks.rank_of_pid(pid)) is not None}


def _may_be_ours(event: XidEvent, job: JobView) -> bool:
    """Whose GPU it is is not known. An NVLink fault of a neighbour's GPU hits ours too: they share the
    switches."""
    if xid_of(event.xid).part == "nvlink" and event.kind == "hardware":
        return True
    placed = any(gpu_of_rank(rank, job) is not None for rank in job.ranks.values())
    return (
        not placed
        and (bool(job.ranks) or job.run.end_unknown)
        and (job.run.may_have_failed or any(rank.failed for rank in job.ranks.values()))
    )


def _may_have_failed_of_it(number: int, job: JobView) -> bool:
    """After a fault of its own every CUDA call of a program fails: who dies of something else, by its own
    last lines, had none. Nor had one that its launcher ended when another had failed."""
    rank = job.ranks.get(number)
    if rank is None or not rank.failed or rank.was_ended:
        return False
    error = heard(rank, job, alone=True).error
    return not error or any(word in error.lower() for word in ("cuda", "gpu", "nccl", "device"))


def _by_hardware(root: XidEvent, events: list[XidEvent], ranks: tuple[int, ...], job: JobView) -> Finding:
    xid = xid_of(root.xid)
    slot, name = _slot(root, job)
    more = sorted({event.xid for event in events} - {root.xid})
    with_it = f"; Xid {', '.join(map(str, more))} with it" if more else ""
    wants = _recovery(root, job)
    whose = f" of {format_ranks(ranks)}" if ranks else ""
    advice = action_advice(xid.action, slot)
    return finding(
        "gpu-fault",
        f"xid_{root.xid}",
        subject=name,
        ranks=ranks,
        since=root.at,
        confidence=Confidence.HIGH if ranks else None,
        summary=f"{name}{whose} at {root.fact.pci_bus_id or 'an unknown address'} failed{when(job)}: Xid {root.xid}, "
        f"{xid.meaning}{with_it}{wants}",
        advice=f"{advice} Resume the job from the last checkpoint on other GPUs.",
        evidence=[_evidence(event) for event in [root, *(one for one in events if one is not root)][:4]],
    )


def _by_switch(job: JobView) -> Iterator[Finding]:
    seen: set[str] = set()
    for at, fact in job.gpu_faults.sxids:
        bus = fact.pci_bus_id
        earlier = job.run.started_at is not None and at < job.run.started_at
        if not fact.fatal or earlier or bus in seen:
            continue
        seen.add(bus)
        yield finding(
            "gpu-fault",
            f"sxid_{fact.sxid}",
            subject=f"NVSwitch {bus}",
            since=at,
            summary=f"the NVSwitch at {bus} failed{when(job)}: SXid {fact.sxid}, fatal; transfers between the node's "
            "GPUs stop",
            advice=action_advice("links"),
            evidence=[Evidence("kmsg", fact.text, at)],
        )


def _errors(now: float, job: JobView, dumps: list[tuple[float, GpuDumpStarted]]) -> list[_Error]:
    """The first error of each rank that mattered, earliest first."""
    table, found = load("gpu/cuda_errors.yaml"), []
    for lines in job.gpu_faults.errors.values():
        for at, fact in lines:
            known = table["errors"].get(fact.error)
            if known is None or job.gpu_faults.finding_of(fact.rank, job.progress.iteration_at) == "cuda-oom":
                continue
            if known["cause"] == "launch_failure" and _after_a_dump(at, fact, dumps):
                known = table["core_dump"]
            rank = victim_of_line(fact.rank, None, job)
            error = _Error(at, fact, rank, known)
            failed = any(mattered(since, one.text, rank, now, job) for since, one in lines)
            if failed and not _is_aftermath(error, job):
                found.append(error)
                break
    return sorted(found, key=lambda error: error.at)


def _after_a_dump(at: float, fact: CudaErrorRaised, dumps: list[tuple[float, GpuDumpStarted]]) -> bool:
    """The driver's line has no rank of its own: in the log of several ranks it may be any of them."""
    return any(
        0.0 <= at - since <= _AFTER_DUMP_SECONDS and dump.rank in (None, fact.rank) for since, dump in dumps
    )


def _is_aftermath(error: _Error, job: JobView) -> bool:
    """A rank that ends takes its memory along: its peers' transfers over NVLink then fail."""
    return error.cause == "peer_memory" and any(
        one is not error.rank and one.failed and (one.exited_at or 0.0) <= error.at
        for one in job.ranks.values()
    )


def _numbers(errors: list[_Error]) -> set[int]:
    return {one.number for one in errors if one.number is not None}


def _by_error(errors: list[_Error], events: list[tuple[XidEvent, tuple[int, ...]]], job: JobView) -> Finding:
    first, known = errors[0], errors[0].known
    alike = [one for one in errors if one.cause == first.cause and one.at - first.at <= _TOGETHER_SECONDS]
    ranks = tuple(sorted(_numbers(alike)))
    later = tuple(sorted(_numbers(errors) - set(ranks)))
    mine = [event for event, users in events if set(users) & set(ranks)]
    follows = sorted(
        {event.xid for event in mine if event.xid in known["follows"] or event.kind == "consequence"}
    )
    xids = f"; Xid {', '.join(map(str, follows))} of the driver follows from it" if follows else ""
    check = _assertion(first, job)
    after = f"; {format_ranks(later)} failed after it" if later else ""
    sure = follows or check or (first.rank is not None and first.rank.failed)
    return finding(
        "gpu-fault",
        first.cause,
        ranks=ranks,
        waiting_ranks=later,
        since=first.at,
        confidence=Confidence.HIGH if sure else None,
        summary=f"a CUDA call of {who(ranks, 'a rank')} failed{when(job)}: "
        f'"{first.fact.error}"{check}: {first.meaning}{xids}{after}',
        advice=with_words(
            known["of_value" if "of_value" in known and _OF_VALUE.search(check) else "advice"],
            load("gpu/cuda_errors.yaml")["advice"],
        ),
        evidence=(
            *(Evidence("output", one.fact.text, one.at, one.number) for one in alike[:3]),
            *(_evidence(event) for event in mine[:3]),
        ),
    )


def _by_xid_alone(event: XidEvent, meaning: Xid, ranks: tuple[int, ...], job: JobView) -> Finding:
    unknown = ""
    if event.pids and not _ranks_named(event, job):
        unknown = f". Whether pid {event.pids[0]} in its line, of the host, is this job's cannot be seen from in here"
    return finding(
        "gpu-fault",
        f"xid_{event.xid}",
        confidence=Confidence.LOW,
        ranks=ranks,
        since=event.at,
        summary=f"the driver reports Xid {event.xid} for {format_ranks(ranks)}{when(job)}: {meaning.meaning}; most often the "
        f"program is to blame, and its log does not say more{unknown}",
        advice=f"{action_advice(meaning.action)} {_REPEAT}",
        evidence=[_evidence(event)],
    )


def _by_excerpt(events: list[XidEvent]) -> Iterator[Finding]:
    """Of a log that shows no job: what the driver's first line of each GPU means. Notices about memory are
    ecc-error's."""
    seen: set[str] = set()
    for event in sorted(events, key=lambda one: (_ORDER.index(one.kind), one.at)):
        xid, bus = xid_of(event.xid), event.fact.pci_bus_id
        if event.kind == "hardware" or bus in seen or (event.kind == "notice" and xid.part == "memory"):
            continue
        seen.add(bus)
        of_program = event.kind == "application" and event.xid in xids()
        blame = "; most often the program is to blame" if of_program else ""
        yield finding(
            "gpu-fault",
            f"xid_{event.xid}",
            subject=f"GPU {bus or '?'}",
            severity=None if of_program else Severity.INFO,
            confidence=Confidence.LOW,
            since=event.at,
            summary=f"the driver reports Xid {event.xid} of GPU {bus or '?'}: {xid.meaning}{blame}",
            advice=f"{action_advice(xid.action)} {_REPEAT}" if of_program else action_advice(xid.action),
            evidence=[_evidence(event)],
        )


def _assertion(first: _Error, job: JobView) -> str:
    """The failed check, as the kernel printed it."""
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
