"""What the lines of PyTorch's own watchdog say together: all who print a timeout waited, whoever is behind
them did not come."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model import rank_words
from diag.model.observations import CollectiveTimedOut, Observation, WatchdogState
from diag.state.job import JobState

__all__ = ["Watchdog", "WatchdogSays"]


@dataclass(frozen=True, slots=True)
class WatchdogSays:
    """`kind`: mismatch (calls differ), absent (some are behind), silent (some say nothing at all), all
    (nobody stands apart)."""

    kind: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float  # how long the call was waited in
    text: str


class Watchdog:
    """Keeps the first timeout of each rank, and how far each got in the default group (of others the lines do
    not tell the ranks)."""

    def __init__(self) -> None:
        self._timeouts: dict[int, tuple[float, CollectiveTimedOut]] = {}
        self._states: dict[int, WatchdogState] = {}

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, CollectiveTimedOut) and fact.rank is not None:
            self._timeouts.setdefault(fact.rank, (at, fact))
        elif isinstance(fact, WatchdogState) and fact.rank is not None and fact.desc == "default_pg":
            self._states.setdefault(fact.rank, fact)

    def explain(self, job: JobState) -> WatchdogSays | None:
        """None when no watchdog spoke since the ranks that live now were started."""
        last = {
            rank: fact
            for rank, (at, fact) in self._timeouts.items()
            if rank not in job.ranks or at >= job.ranks[rank].found_at
        }
        if not last:
            return None
        seq = min(fact.seq for fact in last.values())
        front = {rank: fact for rank, fact in last.items() if fact.seq == seq}
        seconds = max(fact.seconds for fact in front.values())
        waiting = tuple(sorted(front))
        calls: dict[tuple[str, int, int], list[int]] = {}
        for rank, fact in sorted(front.items()):
            calls.setdefault((fact.op, fact.numel_in, fact.numel_out), []).append(rank)
        if len(calls) > 1 and len({op for op, _, _ in calls}) > 1:
            text = ", ".join(
                f"{rank_words(ranks)} {op} of {numel} elements" for (op, numel, _), ranks in calls.items()
            )
            most = max(len(ranks) for ranks in calls.values())
            camps = [ranks for ranks in calls.values() if len(ranks) == most]
            blamed = [ranks for ranks in calls.values() if len(camps) > 1 or ranks is not camps[0]]
            culprits = tuple(sorted(rank for ranks in blamed for rank in ranks))
            return WatchdogSays("mismatch", culprits, waiting, seconds, f"at call {seq}: {text}")
        op = next(iter(front.values())).op
        text = f"{rank_words(waiting)} waited {seconds:.0f} s in {op} {seq}"
        behind = tuple(
            sorted(
                rank
                for rank, state in self._states.items()
                if rank not in front and state.last_enqueued < seq
            )
        )
        if behind:
            reached = max(self._states[rank].last_enqueued for rank in behind)
            return WatchdogSays(
                "absent", behind, waiting, seconds, f"{text}; {rank_words(behind)} had issued {reached} calls"
            )
        silent = tuple(sorted(rank for rank in job.ranks if rank not in front and rank not in self._states))
        if silent and len(silent) <= len(front):
            text += f"; the watchdog of {rank_words(silent)} says nothing"
            return WatchdogSays("silent", silent, waiting, seconds, text)
        return WatchdogSays("all", (), waiting, seconds, text)
