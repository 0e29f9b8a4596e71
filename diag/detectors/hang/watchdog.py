"""What the lines of PyTorch's own watchdog say together: all who print a timeout waited, whoever is behind
them did not come."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.verdict import Note, Verdict, blaming, raised, undecided
from diag.model import Confidence
from diag.model.observations import CollectiveTimedOut, WatchdogState
from diag.state.view import JobView
from diag.state.wait_graph import minority
from diag.text.units import format_ranks, format_seconds

# What the watchdog's lines make of a verdict that blames no rank: class ("": as it was), cause, how sure.
_BY_WATCHDOG = {
    "mismatch": ("collective_mismatch", "calls_differ", Confidence.MEDIUM),
    "absent": ("peer_not_joined", "not_in_collective", Confidence.MEDIUM),
    "silent": ("", "rank_says_nothing", Confidence.LOW),
}


@dataclass(frozen=True, slots=True)
class WatchdogReport:
    """`kind`: mismatch (calls differ), absent (some are behind), silent (some report nothing at all), all
    (no rank differs)."""

    kind: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float  # how long the call was waited in
    text: str


class Watchdog:
    """Keeps the first timeout of each rank, and how far each got in the default group (of others the lines do
    not tell the ranks)."""

    listens = (CollectiveTimedOut, WatchdogState)

    def __init__(self) -> None:
        self._timeouts: dict[int, tuple[float, CollectiveTimedOut]] = {}
        self._states: dict[int, WatchdogState] = {}

    def observe(self, at: float, fact: CollectiveTimedOut | WatchdogState) -> None:
        if fact.rank is None:
            return
        if isinstance(fact, CollectiveTimedOut):
            self._timeouts.setdefault(fact.rank, (at, fact))
        elif fact.desc == "default_pg":
            self._states.setdefault(fact.rank, fact)

    def explain(self, job: JobView) -> WatchdogReport | None:
        """None when no watchdog spoke since the ranks that live now were started."""
        front = self._front(job)
        if not front:
            return None
        seq = next(iter(front.values())).seq
        seconds = max(fact.seconds for fact in front.values())
        waiting = tuple(sorted(front))
        # ranks by the operation and its numbers of elements
        calls: dict[tuple[str, int, int], list[int]] = {}
        for rank, fact in sorted(front.items()):
            calls.setdefault((fact.op, fact.numel_in, fact.numel_out), []).append(rank)
        if len({op for op, _, _ in calls}) > 1:
            text = ", ".join(
                f"{format_ranks(ranks)} {op} of {numel} elements" for (op, numel, _), ranks in calls.items()
            )
            fewer = tuple(sorted(minority([*calls.values()])))
            return WatchdogReport("mismatch", fewer, waiting, seconds, f"at call {seq}: {text}")
        op = next(iter(front.values())).op
        text = f"{format_ranks(waiting)} waited {format_seconds(seconds)} in {op} {seq}"
        behind = tuple(
            rank
            for rank, state in sorted(self._states.items())
            if rank not in front and state.last_enqueued < seq
        )
        if behind:
            reached = max(self._states[rank].last_enqueued for rank in behind)
            text += f"; {format_ranks(behind)} had issued {reached} calls"
            return WatchdogReport("absent", behind, waiting, seconds, text)
        silent = tuple(sorted(rank for rank in job.ranks if rank not in front and rank not in self._states))
        if silent and len(silent) <= len(front):
            text += f"; the watchdog of {format_ranks(silent)} reports nothing"
            return WatchdogReport("silent", silent, waiting, seconds, text)
        return WatchdogReport("all", (), waiting, seconds, text)

    def _front(self, job: JobView) -> dict[int, CollectiveTimedOut]:
        """Those who waited in the earliest call, of the ranks that live now."""
        last = {
            rank: fact
            for rank, (at, fact) in self._timeouts.items()
            if rank not in job.ranks or at >= job.ranks[rank].found_at
        }
        seq = min((fact.seq for fact in last.values()), default=0)
        return {rank: fact for rank, fact in last.items() if fact.seq == seq}


def with_watchdog(verdict: Verdict, report: WatchdogReport | None, states: dict[int, str]) -> Verdict:
    if report is None:
        return verdict
    noted = verdict.noted(Note("output", report.text))
    if not undecided(verdict):
        agrees = bool(verdict.culprits) and set(verdict.culprits) == set(report.culprits)
        return replace(noted, confidence=raised(verdict.confidence)) if agrees else noted
    joined_elsewhere = any(states.get(rank) in WAITS for rank in report.culprits)
    if report.kind not in _BY_WATCHDOG or (joined_elsewhere and report.kind != "mismatch"):
        return noted
    klass, cause, confidence = _BY_WATCHDOG[report.kind]
    noted = replace(noted, waiting=tuple(sorted({*verdict.waiting, *report.waiting})))
    return blaming(noted, report.culprits, klass or verdict.klass, cause, confidence)
