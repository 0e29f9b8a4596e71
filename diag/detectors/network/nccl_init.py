"""NCCL could not be set up, for a reason that has no finding of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, load, on_ranks, quoted, ranks_of, since_of
from diag.detectors.network.causes import find_cause
from diag.detectors.network.evidence import advice_for, line_evidence
from diag.detectors.network.memlock import is_memlock
from diag.detectors.network.no_interface import lost_interfaces
from diag.detectors.network.transport_mismatch import differing
from diag.model import Confidence, Evidence, Finding, Severity
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
# What a rank's NCCL prints when ANOTHER one is gone, or was never there.
_LOST = re.compile(
    r"Connection (?:refused|closed|reset)|Socket recv failed"
    r"|closed by remote peer|remote process exited|Broken pipe|timed out|No route to host"
)
# torch 2.0-2.13 below its own line, in NCCL's words:
#   Last error:
#   Socket recv failed while polling for opId=0x200ad80fbbd0
_LAST_ERROR = "Last error:"
_SHM = "shared memory segment"
# NCCL tries 34 times, 100 ms, 200 ms ... apart; the peer listens before its address is given out, so it is not merely late.
_RETRIES = 5
_SETTLE_SECONDS = 3.0
# NCCL 2.18-2.26: `Error: network IB not found.`; 2.27 and later: `Failed to initialize any NET plugin` (src/plugin/net.cc)
_NO_NETWORK = ("Error: network ", "any NET plugin")


class NcclInitErrorDetector(Detector):
    name = "nccl-init-error"
    listens = (LogLine,)

    def __init__(self) -> None:
        self._torch: dict[int | None, tuple[float, str]] = {}
        self._last_errors: dict[int | None, str] = {}  # by rank, in NCCL's words
        self._next_is_one = False

    def observe(self, at: float, fact: LogLine) -> None:
        if self._next_is_one:
            self._last_errors.setdefault(fact.rank, fact.text)
        self._next_is_one = bool(self._torch) and fact.text.endswith(_LAST_ERROR)
        if "NCCL error in: " in fact.text and len(self._torch) < 4096 and _TORCH.search(fact.text):
            self._torch.setdefault(fact.rank, (at, fact.text))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.iteration is not None:
            return  # it worked: what fails later is a matter of rdma errors, dead ranks or hangs
        placed = [(rank, one) for rank, one in job.nccl_processes.placed().items() if not one.connected]
        failing = {rank: one for rank, one in placed if one.results and one.warnings}
        trying = {rank: one for rank, one in placed if _tries(one)}
        # all are set up: another error, later
        torch = self._torch if placed or not job.nccl_processes.living() else {}
        if not (failing or trying or torch) or _has_own_finding(job):
            return
        if failing:
            yield self._by_nccl(job, _own(failing))
        elif torch and job.returncode is None and now - since_of(torch) < _SETTLE_SECONDS:
            return  # NCCL's own lines may come by another file, and later
        elif trying:
            yield _by_retries(trying)
        elif (
            not job.gpu_faults.out_of_memory
        ):  # then NCCL only lacks the memory too, or the rank that it was for
            yield self._by_torch()

    def _by_nccl(self, job: JobView, found: dict[int, NcclProcess]) -> Finding:
        rank, process = min(found.items(), key=lambda item: item[1].warnings[0][0])
        at, line = process.warnings[0]
        results = load("network/errors.yaml")["nccl_result"]
        result = results.get(process.results[0][1].code, results["other"])
        cause, advice, why = result["cause"], result["advice"], ""
        confidence = Confidence.HIGH if self._torch else Confidence.MEDIUM
        if process.failed and any(part in line.text for part in _NO_NETWORK):
            reason = find_cause(job, rank, process)
            cause, advice, why = "network_not_found", advice_for(reason.name, job, rank), f" ({reason.text})"
        elif _is_loss(process, line):
            cause, advice, confidence = "peer_unreachable", None, Confidence.LOW
        ranks = tuple(sorted(found))
        text = line.text if len(line.text) <= 200 else line.text[:197] + "..."
        return finding(
            self.name,
            cause,
            confidence=confidence,
            ranks=ranks,
            waiting_ranks=tuple(sorted(set(job.nccl_processes.placed()) - set(ranks))),
            since=at,
            summary=f'NCCL cannot be set up on {format_ranks(ranks)} ({result["means"]}): "{text}"{why}',
            advice=advice,
            final=bool(self._torch) or job.returncode not in (None, 0),
            holds_seconds=10.0,
            evidence=(
                *(line_evidence(one, process, rank, when) for when, one in list(process.warnings)[:3]),
                *quoted(self._torch)[:1],
            ),
        )

    def _by_torch(self) -> Finding:
        at, text = min(self._torch.values(), key=lambda line: line[0])
        match = _TORCH.search(text)
        means = match[1].strip() if match else ""
        results = load("network/errors.yaml")["nccl_result"]
        result = next((one for one in results.values() if means.startswith(one["means"])), results["other"])
        ranks = ranks_of(self._torch)
        words = list(self._last_errors.values())
        if words and all(map(_LOST.search, words)):
            return finding(
                self.name,
                "peer_unreachable",
                confidence=Confidence.LOW,
                ranks=ranks,
                since=at,
                summary=f'NCCL{on_ranks(ranks)} lost another rank ({means}): "{words[0].strip()[:200]}"',
                final=True,
                evidence=quoted(self._torch),
            )
        return finding(
            self.name,
            result["cause"],
            ranks=ranks,
            since=at,
            summary=f"NCCL cannot be set up{on_ranks(ranks)}: {means}; NCCL_DEBUG is not WARN, so NCCL does not print why",
            advice=f"Run once with NCCL_DEBUG=WARN (`diag run` sets NCCL_DEBUG unless it is set). {result['advice']}",
            final=True,
            evidence=quoted(self._torch),
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
    return finding(
        "nccl-init-error",
        "peer_unreachable",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        since=at,
        summary=f"NCCL on {format_ranks(ranks)} cannot connect{whom}: {retry.error}, tried {retry.attempt} of {retry.most} times",
        evidence=[Evidence("nccl", retry.line.text[:500], at, ranks[0])],
    )


def _own(failing: dict[int, NcclProcess]) -> dict[int, NcclProcess]:
    """Those with an error of their own, or all where each only lost its connection to another."""
    own = {
        rank: process
        for rank, process in failing.items()
        if not all(_is_loss(process, line) for _, line in process.warnings)
    }
    return own or failing


def _is_loss(process: NcclProcess, line: NcclLine) -> bool:
    return any(fact.line == line for _, fact in process.lost) or _LOST.search(line.text) is not None
