"""Errors of RDMA itself: transfers that failed, queue pairs that could not be connected, links that lose
packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, load, row
from diag.detectors.network.memlock import is_memlock, is_resource, may_lock_all
from diag.model import Confidence, Evidence, Finding, Severity
from diag.model.observations import (
    NcclCompletionError,
    NcclFact,
    NcclPortEvent,
    NcclRetry,
    NcclVerbsError,
    RdmaPortsSeen,
)
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

_RETRIES = 5  # NCCL 2.24 and later try 34 times, 100 ms, 200 ms ... apart: after 1.5 s it is no hiccup
# A path that loses a packet a second over a minute is sick; a healthy one counts a handful a day. Ours.
_LOSSES = ("local_ack_timeout_err", "packet_seq_err")
_LOSSES_PER_SECOND = 1.0
_LOSS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Error:
    """A line of NCCL about it, with the cause, its meaning and the advice of its row."""

    at: float
    fact: NcclFact
    cause: str
    means: str
    advice: str


class IbErrorDetector(Detector):
    name = "ib-error"
    listens = (RdmaPortsSeen,)

    def __init__(self) -> None:
        self._losses: dict[tuple[str, int, str], tuple[float, int]] = {}
        self._sick: dict[tuple[str, int, str], tuple[float, float]] = {}

    def observe(self, at: float, fact: RdmaPortsSeen) -> None:
        for port in fact.ports:
            for name, value in port.counters:
                if name not in _LOSSES:
                    continue
                key = (port.device, port.port, name)
                first = self._losses.setdefault(key, (fact.emitted, value))
                seconds = fact.emitted - first[0]
                if seconds >= _LOSS_SECONDS:
                    rate = (value - first[1]) / seconds
                    self._losses[key] = (fact.emitted, value)
                    if rate > _LOSSES_PER_SECOND:
                        self._sick[key] = (at, rate)
                    else:
                        self._sick.pop(key, None)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        yield from _first_error(job)
        for (device, number, name), (at, rate) in self._sick.items():
            seconds = format_seconds(_LOSS_SECONDS)
            yield finding(
                self.name,
                "packet_loss",
                subject=f"port {device}:{number}",
                since=at,
                summary=f"RDMA port {device}:{number} loses packets: {name} grows by {rate:.1f} a second",
                evidence=[Evidence("infiniband", f"{name} +{rate:.2f}/s over {seconds}", at)],
            )


def _first_error(job: JobView) -> Iterator[Finding]:
    """One root: the others follow."""
    first: dict[str, tuple[int | None, _Error]] = {}
    ranks: dict[str, set[int]] = {}
    for rank, process in job.nccl_processes.everywhere():
        free = rank is not None and may_lock_all(job.ranks.get(rank))
        for error in _errors(process, free=free):
            ranks.setdefault(error.cause, set()).update(() if rank is None else (rank,))
            if error.cause not in first or error.at < first[error.cause][1].at:
                first[error.cause] = (rank, error)
    if len(first) > 1:
        first.pop("flushed", None)
    if not first:
        return
    rank, error = min(first.values(), key=lambda item: item[1].at)
    died = [one.rank for one in job.ranks.values() if one.failed]
    tries = isinstance(error.fact, NcclRetry)  # it may still connect
    follows = bool(died) and error.cause in ("retry_exceeded", "flushed")
    hit = tuple(sorted(ranks[error.cause]))
    after = f"; {format_ranks(died)} had died, which explains it" if follows else ""
    line = error.fact.line
    who = format_ranks(hit) if hit else f"process {line.pid} on {line.host}"
    yield finding(
        "ib-error",
        error.cause,
        severity=Severity.WARNING if follows or tries else None,
        confidence=Confidence.LOW if follows else None,
        ranks=tuple(died) if follows else hit,
        waiting_ranks=hit if follows else (),
        since=error.at,
        summary=f"{who}: {_what_failed(error.fact)}: {error.means}{after}",
        advice=error.advice,
        final=not tries,
        evidence=[Evidence("nccl", f"{line.where} {line.text}".strip()[:500], error.at, rank)],
    )


def _errors(process: NcclProcess, *, free: bool) -> Iterator[_Error]:
    """`free`: the rank may lock all memory."""
    tables = load("network/errors.yaml")

    def error(at: float, fact: NcclFact, known: dict[str, Any]) -> _Error:
        return _Error(at, fact, known["cause"], known["means"], known["advice"])

    def connecting(at: float, fact: NcclRetry | NcclVerbsError) -> _Error:
        known = tables["modify_qp_errno"]
        return error(at, fact, known.get(fact.errno, known["other"]))

    def other(at: float, fact: NcclFact, cause: str, means: str = "") -> _Error:
        known = row("ib-error", cause)
        return error(at, fact, {**known, "cause": cause, "means": means or known["means"]})

    for at, event in process.events:
        if event.fatal:
            yield other(at, event, "fatal_event")
    retry = process.retries.get("ibv_modify_qp")
    if retry is not None and retry[1].attempt >= _RETRIES:
        yield connecting(*retry)
    for at, completion in process.completions:
        known = tables["completion_status"]
        status = known.get(completion.status, known["other"])
        yield error(at, completion, {**status, "means": status["means"].format(status=completion.status)})
    for at, failed in process.verbs:
        locks = is_resource(failed.call) and (free or not is_memlock(failed))
        if failed.call.startswith("ibv_modify_qp"):
            yield connecting(at, failed)
        elif locks or failed.call in ("ibv_alloc_pd", "ibv_post_send", "ibv_post_recv"):
            yield other(at, failed, "verbs_failed", failed.error)


def _what_failed(fact: NcclFact) -> str:
    if isinstance(fact, NcclPortEvent):
        return f"{fact.device or 'an RDMA device'}: {fact.event}"
    if isinstance(fact, NcclRetry):
        return f"{fact.call} fails ({fact.error}), tried {fact.attempt} of {fact.most} times"
    if isinstance(fact, NcclCompletionError):
        device = f" on {fact.device}" if fact.device else ""
        return f"a transfer with {fact.peer}{device} failed with status {fact.status}"
    assert isinstance(fact, NcclVerbsError)
    device = f" on {fact.device}:{fact.port}" if fact.device else ""
    gid = f" (GID index {fact.gid_index})" if fact.gid_index is not None else ""
    return f"{fact.call} failed{device}{gid}"
