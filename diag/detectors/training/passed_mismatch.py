"""Do ranks call collectives that do not fit together, without anybody waiting for it?"""

from __future__ import annotations

from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.training.recorders import RecorderRounds
from diag.model import Confidence, Evidence, Finding
from diag.model.observations import FlightRecorder, RankFound
from diag.state.collective_fronts import Front, Signature, passed_mismatches
from diag.state.view import JobView
from diag.state.wait_graph import minority
from diag.text.units import format_ranks

_MOST_SHOWN = 3


class PassedMismatchDetector(Detector):
    name = "rank-desync"
    listens = (FlightRecorder, RankFound)

    def __init__(self) -> None:
        self._rounds = RecorderRounds()
        self._pids: dict[int, int] = {}
        self._found: list[Front] = []
        self._compared = 0
        self._at = 0.0

    def observe(self, at: float, fact: FlightRecorder | RankFound) -> None:
        if isinstance(fact, RankFound):
            known = self._pids.get(fact.placement.rank)
            if known not in (None, fact.placement.pid):  # another attempt
                self._rounds.start_over()
                self._found = []
            self._pids[fact.placement.rank] = fact.placement.pid
            return
        recorders = self._rounds.observe(at, fact, len(self._pids))
        if recorders is None:
            return
        found, compared = passed_mismatches(recorders, len(self._pids))
        if found:
            self._found, self._compared, self._at = found, compared, at

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if not self._found:
            return
        newest, count = self._found[0], len(self._found)
        ranks = tuple(sorted(minority([item.ranks for item in newest.signatures])))
        yield finding(
            self.name,
            "collectives_differ",
            ranks=ranks,
            waiting_ranks=tuple(rank for rank in newest.waiting if rank not in ranks),
            since=self._at,
            confidence=Confidence.HIGH if count > 1 else None,
            summary=f"{_in_words(newest)}, and nobody waits for it: what came out is wrong ({count} of {self._compared} calls "
            "that all ranks ended did not fit together, by the Flight Recorder)",
            evidence=[
                Evidence("flight_recorder", _in_words(one), self._at) for one in self._found[:_MOST_SHOWN]
            ],
        )


def _in_words(front: Front) -> str:
    """ "rank 0 called all_reduce of 4,194,304 elements, rank 1 of 3,145,728 (group 1 of ranks 0-1, call 120)"."""
    calls = ", ".join(f"{format_ranks(one.ranks)} called {_call(one)}" for one in front.signatures[:4])
    return f"{calls} (call {front.seq} of {front.desc or front.group})"


def _call(one: Signature) -> str:
    sizes = " ".join(str(list(size)) for size in one.sizes[:2])
    return f"{one.op} {sizes} {' '.join(one.dtypes)}".rstrip()
