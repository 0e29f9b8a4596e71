"""What one captured moment proves: no time passes in it, so that its own times (log, watchdog, GPUs, recorder) or
equal stacks have to show that the job stands still."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.patience import STEADY_SECONDS
from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.verdict import Verdict, lowered, undecided
from diag.model import Confidence, NotChecked
from diag.model.observations import SnapshotTaken
from diag.state.rank_view import RankView
from diag.state.view import JobView

_SAMPLES = 2  # equal stacks within one captured moment that show a rank standing
_BLOCKED_FOR_LONG = ("data_loading", "lock_deadlock", "gil_deadlock", "checkpoint_io", "resource_wait")


def began_still(snapshot: SnapshotTaken, alive: list[RankView]) -> float | None:
    """None where two stacks of the moment differ, or it is still to come."""
    moves = any(rank.moved.get("stack", 0.0) > snapshot.began for rank in alive)
    return snapshot.began if snapshot.final and not moves else None


def with_unseen(verdict: Verdict, alive: list[RankView]) -> Verdict:
    """Those of whom no stack was captured are not blamed for that: they count as waiting."""
    everyone = {rank.rank for rank in alive}
    return replace(verdict, waiting=tuple(sorted({*verdict.waiting, *everyone} - {*verdict.culprits})))


def proven(  # noqa: PLR0917 - one caller
    verdict: Verdict,
    snapshot: SnapshotTaken,
    seen: list[RankView],
    missing: bool,
    states: dict[int, str],
    now: float,
) -> Verdict | None:
    """The verdict as sure as one moment can make it: one that names no rank needs times. `missing`: not all ranks
    are known."""
    if not verdict.waiting and verdict.klass in ("unknown", "peer_not_joined"):
        return None  # a state that a training which goes on has too
    silent = snapshot.silent_seconds or 0.0
    confidence = verdict.confidence
    if silent < STEADY_SECONDS:
        twice = bool(seen) and all(rank.stack_samples >= _SAMPLES for rank in seen)
        if undecided(verdict) or not (twice or _tells_by_itself(verdict, states)):
            return None
        if verdict.klass != "peer_lost":
            confidence = lowered(confidence) if twice else Confidence.LOW
    if missing:
        confidence = lowered(confidence)
    return replace(verdict, confidence=confidence, seconds=silent, since=now - silent)


def unproven(snapshot: SnapshotTaken, job: JobView) -> Iterator[NotChecked]:
    alive = job.alive_ranks()
    once = any(rank.stack is not None and rank.stack_samples < _SAMPLES for rank in alive)
    timeless = (snapshot.silent_seconds or 0.0) < STEADY_SECONDS
    if snapshot.final and once and timeless and job.returncode is None:
        yield NotChecked(
            "whether the job is stuck",
            "there is only one stack of a rank, and nothing with timestamps",
            "run `py-spy dump` on each rank again some seconds later, and put its output next to the first",
        )


def _tells_by_itself(verdict: Verdict, states: dict[int, str]) -> bool:
    """One stack of each rank, and no times: only where the recorder has a call that some did not come to, or
    where one is blocked in what training does not pass through in a moment while all others seen wait for it.
    """
    if verdict.collectives is not None or verdict.klass in ("peer_lost", "stopped"):
        return True
    waiting = [states[rank] for rank in verdict.waiting if states.get(rank, "blind") != "blind"]
    return verdict.klass in _BLOCKED_FOR_LONG and bool(waiting) and all(state in WAITS for state in waiting)
