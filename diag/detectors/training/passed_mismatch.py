"""Do ranks call collectives that do not fit together, without anybody waiting for it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.detectors.findings import finding
from diag.detectors.training.recorders import RecorderRounds
from diag.model import Confidence, Evidence, Finding, NotChecked, Placement
from diag.model.observations import CallHistory, FlightRecorder, RankFound
from diag.state.collective_fronts import Front, Signature
from diag.state.passed_calls import Passed, passed_calls
from diag.state.view import JobView
from diag.state.wait_graph import minority
from diag.text.units import format_ranks, format_ratio

_MOST_SHOWN = 3


@dataclass(slots=True)
class _Group:
    """Calls are numbered from 1: `newest` is how many were made, `ended` how many of them all ranks' recorders had."""

    newest: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """The newest calls that did not fit together, and how many did not, of how many."""

    fronts: tuple[Front, ...]
    count: int
    compared: int
    since: float
    at: float


class PassedMismatchDetector(Detector):
    """Each call is counted once, however many readings have it."""

    name = "rank-desync"
    listens = (FlightRecorder, CallHistory, RankFound)

    def __init__(self) -> None:
        self._places: dict[int, Placement] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._last_calls: RecorderRounds[FlightRecorder] = RecorderRounds()
        self._all_calls: RecorderRounds[CallHistory] = RecorderRounds()
        # Of a job hub's own node only: other nodes' hubs do not send all calls.
        self._of_host: dict[str, RecorderRounds[CallHistory]] = {}
        self._groups: dict[tuple[str, str, tuple[int, ...]], _Group] = {}
        self._compared = self._rounds = 0
        self._found: _Found | None = None
        self._spans_nodes = False

    def observe(self, at: float, fact: FlightRecorder | CallHistory | RankFound) -> None:
        if isinstance(fact, RankFound):
            known = self._places.get(fact.placement.rank)
            if known is not None and known.pid != fact.placement.pid:  # another attempt
                self._start_over()
            self._places[fact.placement.rank] = fact.placement
            return
        place = self._places.get(-1 if fact.rank is None else fact.rank)
        if place is not None and fact.pid not in (0, place.pid):
            return  # of the attempt before
        if isinstance(fact, FlightRecorder):
            self._compare(at, self._last_calls.observe(at, fact, len(self._places)))
            return
        whole = self._all_calls.observe(at, fact, len(self._places))
        self._rounds += self._compare(at, whole)
        if place is not None:
            beside = sum(one.host == place.host for one in self._places.values())
            if beside < len(self._places):
                rounds = self._of_host.setdefault(place.host, RecorderRounds())
                here = rounds.observe(at, fact, beside)
                self._rounds += self._compare(at, here)
                self._spans_nodes |= here is not None and any(
                    not here.keys() >= set(group.members) for group in fact.groups
                )

    def _compare(self, at: float, recorders: Mapping[int, FlightRecorder | CallHistory] | None) -> bool:
        if recorders is None:
            return False
        fronts: list[Front] = []
        for one in passed_calls(recorders, len(self._places)):
            fronts += self._news(one)
        if fronts:
            before = self._found
            count, since = (before.count, before.since) if before is not None else (0, at)
            self._found = _Found(tuple(fronts[:_MOST_SHOWN]), count + len(fronts), self._compared, since, at)
        return True

    def _news(self, passed: Passed) -> Iterator[Front]:
        """What no earlier reading had."""
        group = self._groups.setdefault((passed.backend, passed.group, passed.members), _Group())
        before = group.newest
        group.newest = max((before, *passed.ended))
        group.ended += sum(seq > before for seq in passed.ended)
        self._compared += sum(seq > before for seq in passed.compared)
        return (front for front in passed.found if front.seq > before)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        found = self._found
        if found is None:
            return
        newest = found.fronts[0]
        ranks = tuple(sorted(minority([item.ranks for item in newest.signatures])))
        yield finding(
            self.name,
            "collectives_differ",
            ranks=ranks,
            waiting_ranks=tuple(rank for rank in newest.waiting if rank not in ranks),
            since=found.since,
            confidence=Confidence.HIGH if found.count > 1 else None,
            summary=f"{_in_words(newest)}, and nobody waits for it: what came out is wrong ({found.count} of "
            f"{found.compared} calls that all ranks ended did not fit together, by the Flight Recorder)",
            evidence=[Evidence("flight_recorder", _in_words(one), found.at) for one in found.fronts],
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        made = sum(group.newest for group in self._groups.values())
        missed = made - sum(group.ended for group in self._groups.values())
        if self._rounds > 1 and missed > 0:  # one reading is that of a dump
            yield NotChecked(
                "whether all collectives fit together",
                f"{missed} of {made} calls ({format_ratio(missed / made)}) went by between two looks: the Flight Recorder keeps "
                "the last ones only",
                "TORCH_DISTRIBUTED_DEBUG=DETAIL in a short run checks each call",
            )
        if self._spans_nodes:
            yield NotChecked(
                "whether collectives of groups that span nodes fit together",
                "while the job moves, recorders are compared within a node",
                "under suspicion and in a dump of all ranks the last calls are compared",
            )


def _in_words(front: Front) -> str:
    """ "rank 0 called all_reduce of 4,194,304 elements, rank 1 of 3,145,728 (group 1 of ranks 0-1, call 120)"."""
    calls = ", ".join(f"{format_ranks(one.ranks)} called {_call(one)}" for one in front.signatures[:4])
    return f"{calls} (call {front.seq} of {front.desc or front.group})"


def _call(one: Signature) -> str:
    sizes = " ".join(str(list(size)) for size in one.sizes[:2])
    return f"{one.op} {sizes} {' '.join(one.dtypes)}".rstrip()
