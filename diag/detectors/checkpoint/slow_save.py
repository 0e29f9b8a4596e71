"""A save takes far longer than the ones before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.state.savefacts import format_save, save_json
from diag.state.view import JobView
from diag.text.units import format_seconds

_TIMES = 5.0
_MORE_SECONDS = 60.0  # saves that are over between two looks at the stacks are measured too short
_EARLIER = 3


class SlowSaveDetector:
    """Meaning: the checkpoint that is being written takes more than five times as long as any before it, and
    still moves.

    Evidence: the times of the saves so far (three or more), bytes on disk and how fast they grow.

    What to do: look at the file system: other jobs that write to it, its quota and its health; the last save
    is the one to compare with.

    False alarms: a last save that writes more than the others did (all of the optimizer, a merged model).
    """

    name = "slow"
    listens = ()

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        save, facts = job.saves.log.current, save_json(job, now)
        earlier = [seconds for one in job.saves.log.finished if (seconds := one.seconds) is not None]
        if save is None or facts is None or len(earlier) < _EARLIER or not job.alive_ranks():
            return
        took, longest = now - save.began, max(earlier)
        if took < max(_TIMES * longest, longest + _MORE_SECONDS):
            return
        yield Finding(
            id="slow",
            subject="save",
            klass="checkpoint_save",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
            since=save.began,
            cause="save_slower_than_before",
            summary=f"the save after iteration {save.iteration} has taken {format_seconds(took)}, the longest of {len(earlier)} before "
            "it took "
            f"{format_seconds(longest)}: {format_save(facts)}",
            advice="Look at the file system that it goes to: who else writes there, quota, `df`, the storage's own health. "
            "Where it grows slowly, fewer bytes help: --no_save_optim true for all but the last, a local disk first, "
            "--async_save true (ms-swift).",
            evidence=(
                Evidence(
                    "saves",
                    f"earlier saves: {', '.join(format_seconds(seconds) for seconds in earlier[-8:])}",
                    now,
                ),
            ),
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()
