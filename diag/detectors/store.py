"""Nodes and ranks that cannot meet: they cannot reach the store of the job, or were not started alike. While they
still try, and when they die of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.detectors.disagreement import disagreement_finding
from diag.detectors.findings import finding
from diag.model import Confidence, Evidence, Finding, Severity
from diag.model.observations import RankFound, StoreTried, StoreWaited
from diag.state.meeting import Disagreement, disagreement
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# Ours: a node 0 that starts half a minute later is nothing to report.
_PATIENCE_SECONDS = 40.0
_GRAVE_SECONDS = 90.0  # as long as nodes are waited for that never came: see detectors/cluster/missing.py
_LOOK_SECONDS = 15.0  # three looks of the watch
_LATE_SECONDS = 10.0  # a try itself takes its time
_MOST = 4096

# errno of Linux
_CAUSES = {"111": "refused", "104": "refused", "101": "no_route", "113": "no_route", "110": "no_answer"}


@dataclass(slots=True)
class _Waits:
    """One launcher (no rank) or rank, and one place."""

    rank: int | None
    host: str
    port: int
    since: float
    seen: float | None = None  # the last reading from outside that found it there
    due: float = 0.0  # by then the log shows another try, or it is connected
    tries: int = 0
    why: str = ""
    text: str = ""
    pid: int = 0
    node: int | None = None
    pending: bool = False

    def lasts(self, now: float) -> bool:
        return now <= self.due or (self.seen is not None and now - self.seen <= _LOOK_SECONDS)


class StoreDetector(Detector):
    name = "rendezvous-failure"
    listens = (StoreTried, StoreWaited, RankFound)

    def __init__(self) -> None:
        self._apart: Disagreement | None = None
        self._waits: dict[tuple[int | None, int], _Waits] = {}  # by rank (None: a launcher) and port

    def observe(self, at: float, fact: StoreTried | StoreWaited | RankFound) -> None:
        if isinstance(fact, StoreTried):
            one = self._of(at, fact, fact.host)
            if one is not None:
                one.tries += 1
                one.why, one.text, one.due = fact.why, fact.text, at + fact.delay + _LATE_SECONDS
        elif isinstance(fact, RankFound):
            for key in [key for key in self._waits if key[0] in (None, fact.rank)]:
                del self._waits[key]  # a launcher starts ranks when it has met the others
        elif fact.over:
            self._waits.pop((fact.rank, fact.port), None)
        else:
            one = self._of(at, fact, fact.host)
            if one is not None:
                one.seen, one.pid, one.node, one.pending = at, fact.pid, fact.node, fact.pending

    def _of(self, at: float, fact: StoreTried | StoreWaited, host: str) -> _Waits | None:
        key = (fact.rank, fact.port)
        known = self._waits.get(key)
        if known is None and len(self._waits) >= _MOST:
            return None
        if known is None or known.host != host or not known.lasts(at):
            known = self._waits[key] = _Waits(fact.rank, host, fact.port, at)
        return known

    def tick(self, now: float, job: JobView) -> None:
        """When they die of it, what they had is remembered."""
        found = disagreement(job.ranks) if job.iteration is None else None
        if found is not None or (self._apart is not None and not job.broken):
            self._apart = found

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.iteration is not None:
            return
        if self._apart is not None:
            grave = now - self._apart.since >= _GRAVE_SECONDS
            yield disagreement_finding(self._apart, job, grave=grave)
            return
        waits = [
            one for one in self._waits.values() if one.lasts(now) and now - one.since >= _PATIENCE_SECONDS
        ]
        if waits:  # of one job all go to the same place
            place = (waits[0].host, waits[0].port)
            yield _finding([one for one in waits if (one.host, one.port) == place], now, job)


def _finding(waits: list[_Waits], now: float, job: JobView) -> Finding:
    first = min(waits, key=lambda one: one.since)
    known = next((one for one in waits if one.why), first)
    pending = any(one.pending for one in waits)
    cause, why = _cause(known, pending), _reason(known, pending)
    ranks = tuple(sorted(one.rank for one in waits if one.rank is not None))
    node = next((one.node for one in waits if one.node is not None), None)
    who = format_ranks(ranks) if ranks else "the launcher" + (f" of node {node}" if node is not None else "")
    place = f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"
    tries = max(one.tries for one in waits)
    times = f" ({tries} attempts in its log)" if tries > 1 else ""
    waited = now - first.since
    plural = "have" if len(ranks) > 1 else "has"
    grave = waited >= _GRAVE_SECONDS or job.broken
    return finding(
        "hostname-resolution" if cause == "gai_error" else "rendezvous-failure",
        cause,
        ranks=ranks,
        severity=Severity.CRITICAL if grave else None,
        confidence=Confidence.HIGH if known.why or known.pending else None,
        since=now if job.broken else first.since,
        final=job.broken,
        summary=f"{who} {plural} been trying to reach {place} for {format_seconds(waited)} without success{times}: {why}",
        words={"place": place, "host": first.host, "port": str(first.port)},
        evidence=tuple(_evidence(waits)),
    )


def _evidence(waits: list[_Waits]) -> Iterator[Evidence]:
    for one in [one for one in waits if one.text][:2]:
        yield Evidence("output", one.text, one.since, one.rank)
    for one, seen in [(one, one.seen) for one in waits if one.seen is not None][:4]:
        text = f"pid {one.pid} is in the call that connects, without a connection to port {one.port}"
        yield Evidence("store", text + (": SYN_SENT" if one.pending else ""), seen, one.rank)


def _cause(one: _Waits, pending: bool) -> str:
    number = one.why.removeprefix("errno: ").partition(" ")[0]
    if one.why.startswith("gai error: "):
        return "gai_error"
    if pending and not number.isdecimal():
        return "no_answer"
    return _CAUSES.get(number, "refused" if one.seen is not None else "connect_timeout")


def _reason(one: _Waits, pending: bool) -> str:
    text = one.why.partition(" - ")[2]
    if one.why.startswith("gai error: "):
        return f"the name has no address ({text})"
    if one.why.startswith("errno: "):
        return text
    if pending:
        return "what the kernel sends there is not answered"
    if one.seen is not None:
        return (
            "each attempt fails at once, as when nothing is listening yet, and no connection is in progress"
        )
    return one.why or "no connection is made"
