"""NCCL could not be set up, for a reason that has no finding of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from diag.detectors.network.advice import advice_for
from diag.detectors.network.causes import find_cause
from diag.detectors.network.evidence import line_evidence, on_ranks
from diag.detectors.network.memlock import is_memlock
from diag.detectors.network.no_interface import lost_interfaces
from diag.detectors.network.transport_mismatch import differing
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import LogLine, NcclLine
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView
from diag.text.units import format_ranks

# torch 2.11, captured on 2 x H200, 2026-11-20:
#   torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3135, invalid
#   usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9
_TORCH = re.compile(
    r"NCCL error in: [^,]{1,300}, ([^(,]{1,80}?)(?: \(run with NCCL_DEBUG=\w+ for details\))?, NCCL version"
)
# What a rank's NCCL says when ANOTHER one is gone, or was never there.
_LOST = re.compile(
    r"Connection (?:refused|closed|reset)|closed by remote peer|remote process exited|Broken pipe|timed out|No route to host"
)
# ncclResult_t (nccl.h): cause, as PyTorch words it, what to do.
_RESULTS = {
    1: (
        "cuda",
        "unhandled CUDA error",
        "A CUDA call failed inside NCCL: check that the driver is not older than the CUDA of "
        "PyTorch's "
        "build (`nvidia-smi`), that CUDA_VISIBLE_DEVICES is right, and that no earlier CUDA error of the rank caused it.",
    ),
    2: (
        "system",
        "unhandled system error",
        "A system call failed: the warning names it (socket, shared memory, file limit, driver).",
    ),
    3: (
        "internal",
        "internal error",
        "NCCL met something that it does not expect: different NCCL versions or topologies on "
        "the nodes, or a bug; compare `NCCL version` of all ranks.",
    ),
    4: (
        "invalid_argument",
        "invalid argument",
        "A call got an argument that NCCL refuses: a rank or size that differs between ranks.",
    ),
    5: (
        "invalid_usage",
        "invalid usage",
        "NCCL was used in a way that it refuses: the warning names it (variable, interface, GPU).",
    ),
    6: (
        "remote",
        "remote process exited or there was a network error",
        "Another rank failed or left: look for its own error first.",
    ),
}
_OTHER = ("other", "an error", "See NCCL's warnings in the evidence.")
_UNREACHABLE = (
    "The address in the warning could not be reached: a peer that failed first (its own log), a firewall between the nodes, or "
    "the wrong interface (NCCL_SOCKET_IFNAME). `diag doctor` on both nodes tells these apart."
)
_SHM = "shared memory segment"
# NCCL tries 34 times, 100 ms, 200 ms ... apart; the peer listens before its address is given out, so it is not merely late.
_RETRIES = 5
_SETTLE_SECONDS = 3.0
# NCCL 2.18-2.26: `Error: network IB not found.`; 2.27 and later: `Failed to initialize any NET plugin` (src/plugin/net.cc)
_NO_NETWORK = ("Error: network ", "any NET plugin")


class NcclInitErrorDetector:
    """Meaning: NCCL failed before the first training step, for a reason that has no finding of its own.

    Evidence: PyTorch's `NCCL error in:`, NCCL's warnings and result codes. The rank with an error of its own
    is named, not those that only lost their connection to it.

    What to do: the first warning says it; the advice follows NCCL's result.

    False alarms: none known; where the cause has its own finding (no interface, locked memory, shared memory,
    a GPU used twice, RDMA errors), that one is given instead.
    """

    name = "nccl-init-error"
    listens = (LogLine,)

    def __init__(self) -> None:
        self._torch: dict[int | None, tuple[float, str, str]] = {}

    def observe(self, at: float, fact: LogLine) -> None:
        if "NCCL error in: " in fact.text and len(self._torch) < 4096:
            match = _TORCH.search(fact.text)
            if match:
                self._torch.setdefault(fact.rank, (at, match[1].strip(), fact.text))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.iteration is not None:
            return  # it worked: what fails later is a matter of rdma errors, dead ranks or hangs
        placed = {
            rank: process for rank, process in job.nccl_processes.placed().items() if not process.connected
        }
        failing = {rank: process for rank, process in placed.items() if process.results and process.warnings}
        trying = {rank: process for rank, process in placed.items() if _tries(process)}
        # all are set up: another error, later
        told = self._torch if placed or not job.nccl_processes.living() else {}
        if not (failing or trying or told) or _has_own_finding(job):
            return
        if told and not failing and job.returncode is None and now - self._first_at() < _SETTLE_SECONDS:
            return  # NCCL's own lines may come by another file, and later
        own = {rank: process for rank, process in failing.items() if not _only_lost(process)}
        if failing:
            yield self._by_nccl(job, own or failing, now)
        elif trying:
            yield _by_retries(trying)
        else:
            yield self._by_torch()

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def _first_at(self) -> float:
        return min(at for at, _, _ in self._torch.values())

    def _by_nccl(self, job: JobView, found: dict[int, NcclProcess], now: float) -> Finding:
        rank, process = min(found.items(), key=lambda item: item[1].warnings[0][0])
        at, line = process.warnings[0]
        cause, words, advice = _RESULTS.get(process.results[0][1].code, _OTHER)
        why, confidence = "", Confidence.HIGH if self._torch else Confidence.MEDIUM
        if process.failed and any(part in line.text for part in _NO_NETWORK):
            reason = find_cause(job, rank, process)
            cause, advice, why = "network_not_found", advice_for(reason.name, job, rank), f" ({reason.said})"
        elif _is_loss(process, line):
            cause, advice = "peer_unreachable", _UNREACHABLE
            confidence = Confidence.LOW
        ranks = tuple(sorted(found))
        torch = [Evidence("output", text[:500], when, who) for who, (when, _, text) in self._torch.items()]
        return Finding(
            id="nccl-init-error",
            subject=JOB,
            severity=Severity.CRITICAL,
            confidence=confidence,
            ranks=ranks,
            waiting_ranks=tuple(sorted(set(job.nccl_processes.placed()) - set(ranks))),
            since=at,
            cause=cause,
            summary=f'NCCL cannot be set up on {format_ranks(ranks)} ({words}): "{_trim(line.text)}"{why}',
            advice=advice,
            final=bool(torch) or job.returncode not in (None, 0),
            holds_seconds=10.0,
            evidence=(
                *(
                    line_evidence(warning, process, rank, when)
                    for when, warning in list(process.warnings)[:3]
                ),
                *torch[:1],
            ),
        )

    def _by_torch(self) -> Finding:
        _, (at, result, _) = min(self._torch.items(), key=lambda item: item[1][0])
        ranks = tuple(sorted(rank for rank in self._torch if rank is not None))
        cause, _, advice = next((row for row in _RESULTS.values() if result.startswith(row[1])), _OTHER)
        return Finding(
            id="nccl-init-error",
            subject=JOB,
            severity=Severity.CRITICAL,
            confidence=Confidence.LOW,
            ranks=ranks,
            since=at,
            cause=cause,
            summary=f"NCCL cannot be set up{on_ranks(ranks)}: {result}; NCCL_DEBUG is not WARN, so it does not say why",
            advice=f"Run once with NCCL_DEBUG=WARN (`diag run` sets NCCL_DEBUG unless it is set). {advice}",
            final=True,
            evidence=tuple(
                Evidence("output", text[:500], when, who)
                for who, (when, _, text) in list(self._torch.items())[:3]
            ),
        )


def _has_own_finding(job: JobView) -> bool:
    """The cause has a finding of its own, which says more."""
    missing, wrong = lost_interfaces(job)
    if missing or wrong or differing(job) is not None:
        return True
    for process in job.nccl_processes.living():
        shm = any(_SHM in line.text for _, line in process.warnings)
        rdma = any(is_memlock(error) or error.call.startswith("ibv_modify_qp") for _, error in process.verbs)
        fatal = any(event.fatal for _, event in process.events)
        if process.duplicates or process.completions or shm or rdma or fatal:
            return True
    return False


def _tries(process: NcclProcess) -> bool:
    retry = process.retries.get("connect")
    return retry is not None and retry[1].attempt >= _RETRIES


def _by_retries(found: dict[int, NcclProcess]) -> Finding:
    """A rank tries to reach another one again and again; NCCL gives up after a minute."""
    at, retry = min((process.retries["connect"] for process in found.values()), key=lambda one: one[0])
    ranks = tuple(sorted(found))
    whom = f" to {retry.peer}" if retry.peer else ""
    return Finding(
        id="nccl-init-error",
        subject=JOB,
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        since=at,
        cause="peer_unreachable",
        summary=f"NCCL on {format_ranks(ranks)} cannot connect{whom}: {retry.error}, tried {retry.attempt} of {retry.most} times",
        advice=_UNREACHABLE,
        evidence=(Evidence("nccl", retry.line.text[:500], at, ranks[0]),),
    )


def _only_lost(process: NcclProcess) -> bool:
    return all(_is_loss(process, line) for _, line in process.warnings)


def _is_loss(process: NcclProcess, line: NcclLine) -> bool:
    return any(fact.line == line for _, fact in process.lost) or _LOST.search(line.text) is not None


def _trim(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
