"""A save takes far longer than the ones before it."""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.model import Evidence, Finding
from diag.state.savefacts import format_save, save_json
from diag.state.view import JobView
from diag.text.units import format_seconds

_TIMES = 5.0
_MORE_SECONDS = 60.0  # saves that are over between two readings of the stacks are measured too short
_EARLIER = 3


class SlowSaveDetector(Detector):
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
        times = ", ".join(format_seconds(seconds) for seconds in earlier[-8:])
        yield finding(
            "slow",
            "save_slower_than_before",
            subject="save",
            klass="checkpoint_save",
            since=save.began,
            summary=f"the save after iteration {save.iteration} has taken {format_seconds(took)}, the longest of "
            f"{len(earlier)} before it took {format_seconds(longest)}: {format_save(facts)}",
            evidence=[Evidence("saves", f"earlier saves: {times}", now)],
        )
