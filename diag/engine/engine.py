"""Records in, changes out. Given the time; reads no clock, file, socket or environment.

The live hub, `diag replay` and `diag dump` are thin drivers of this one engine. Whoever owns it stamps `at`
on each record when taking it from the queue (never going back), writes it to the journal and then feeds it
here; the same records fed later give the same changes, which a property test holds.

It names no finding: what follows from what, and what is withheld or reported once, is in the table that it is
given (`detectors/precedence.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from diag.detectors.contract import Detector
from diag.detectors.relations import Precedence
from diag.detectors.retry import retryable
from diag.model import Change, ChangeKind, Finding, NotChecked, Record
from diag.model.observations import Moment, Observation, Parser, Unparsed
from diag.model.observations.base import Event, Listener, by_type
from diag.state.job import JobState
from diag.state.rank_view import STRONG
from diag.state.timeline import Timeline

# Checks run at whole multiples of this many seconds of record time, however often the driver calls.
CHECK_SECONDS = 1.0
# A gap longer than this (a suspended machine, two captures after one another) is not filled with checks.
_LONGEST_CATCH_UP_SECONDS = 600.0
_MOST_CHANGES = 1000  # that are remembered

_Key = tuple[str, str]


@dataclass(slots=True)
class _Open:
    finding: Finding
    opened_at: float
    last_seen: float


class Engine:
    """Feeds records to the job state and the detectors, and turns what they report into opened, updated,
    resolved. `precedence`: how their findings relate."""

    def __init__(
        self,
        parsers: Mapping[str, Parser],
        detectors: Sequence[Detector],
        precedence: Precedence,
        *,
        check_seconds: float = CHECK_SECONDS,
        place_of: Callable[[str], str] = lambda excerpt: "",
        weigh: Callable[[Finding], Finding | None] = lambda finding: finding,
    ) -> None:
        """`place_of`: the file and line that an excerpt is at, or "". `weigh`: what is left of a finding that holds
        only if the job ended of it, where the evidence does not tell how it ended."""
        self._check_seconds = check_seconds  # a log of weeks is not judged at each second of them
        self._parsers = parsers
        self._detectors = detectors
        self._ticks: list[Callable[[float, JobState], None]] = [
            detector.tick for detector in detectors if hasattr(detector, "tick")
        ]
        self._listeners = by_type(cast(Listener, one) for one in detectors if one.listens)
        self.precedence = precedence
        self.place_of = place_of  # the file and line that an excerpt is at
        self._weigh = weigh
        self.job = JobState()
        self.timeline = Timeline()
        self.now = 0.0
        self._urgent = 0  # urgent readings that were judged
        self.records = 0
        self.opened_total: Counter[_Key] = Counter()
        self.withheld: dict[_Key, Finding] = {}  # what this node finds by itself where the job hub judges
        self.finished = False  # no more records come: the job ended, or this was all of the evidence
        self._open: dict[_Key, _Open] = {}
        self._past: list[Change] = []
        self.change_count = (
            0  # of findings: who keeps what it has shown sees by it that there is something new
        )
        self._next_check: float | None = None

    # -- driving ------------------------------------------------------------------------------------------

    def feed(self, record: Record) -> list[Change]:
        """Run the checks due up to `record.at`, then take the record in. Returns what changed."""
        changes = self.advance(record.at)
        self.records += 1
        parser = self._parsers.get(record.source)
        if parser is None:
            self._dispatch(Unparsed(record.rank, record.source, "no parser of this name", ""))
            return changes
        for fact in parser(record):
            if type(fact) is Moment:
                changes.extend(self.advance(fact.at))
            else:
                self._dispatch(fact)
        if self.job.urgent != self._urgent:  # the kernel kills before the next check would come
            self._urgent = self.job.urgent
            changes.extend(self._check(self.now))
        return changes

    def advance(self, now: float) -> list[Change]:
        """Run the checks due up to `now`. A clock that went back is ignored: it only moves forward."""
        if now <= self.now:
            return []
        if self._next_check is None or now - self._next_check > _LONGEST_CATCH_UP_SECONDS:
            self._next_check = math.ceil(now / self._check_seconds) * self._check_seconds
        changes: list[Change] = []
        while self._next_check <= now:
            self.now = self._next_check
            changes.extend(self._check(self._next_check))
            self._next_check += self._check_seconds
        self.now = now
        return changes

    def finish(self) -> list[Change]:
        """One last check at the end of the evidence, for what the final records showed between two grid points."""
        self.finished = True
        return self._check(self.now)

    def _dispatch(self, fact: Observation) -> None:
        facts: tuple[Observation | Event, ...] = (fact, *self.job.observe(self.now, fact))
        for heard in facts:
            self.timeline.observe(self.now, heard, self.job)
            for observe in self._listeners.get(type(heard), ()):
                observe(self.now, heard)

    # -- judging ------------------------------------------------------------------------------------------

    def _check(self, now: float) -> list[Change]:
        for tick in self._ticks:
            tick(now, self.job)
        reported = self._ask_detectors(now)
        changes = self._leave_to_job_hub(now, reported)
        changes += self._yield(now, reported)
        changes += self._open_or_update(now, reported)
        changes += self._resolve(now, reported)
        self.change_count += len(changes)
        self._past.extend(changes)
        del self._past[:-_MOST_CHANGES]
        return changes

    def _ask_detectors(self, now: float) -> dict[_Key, Finding]:
        """What they report, one finding a key: the job hub's before a detector's, a detector's before a rule's,
        else the first. What only the job hub can be right about is withheld for now."""
        reported: dict[_Key, Finding] = {}
        self.withheld = {}
        for detector in self._detectors:
            for found in detector.check(now, self.job):
                finding = self._weighed(found)
                if finding is None:
                    continue
                known = reported.get(finding.key)
                if self._is_of_whole_job(finding):
                    self.withheld[finding.key] = finding
                elif known is None or finding.reported_by or (known.rule and not finding.rule):
                    if finding.reported_by and known is not None:
                        self.withheld[finding.key] = known
                    reported[finding.key] = finding
        return reported

    def _weighed(self, finding: Finding) -> Finding | None:
        """What was reported before nothing more could come counts whatever the end was."""
        known = self._open.get(finding.key)
        certain = known is not None and not known.finding.seen_alone
        return finding if certain or not self.job.run.end_unknown else self._weigh(finding)

    def _leave_to_job_hub(self, now: float, reported: dict[_Key, Finding]) -> list[Change]:
        """Of a job of several nodes that another judges: what one node would report of it stays withheld, as
        evidence for that one. Else it is reported here."""
        if not self.job.cluster.joined(now):
            reported.update(
                (key, one) for key, one in self.withheld.items() if key not in reported or reported[key].rule
            )
            return []
        taken_over = [
            key
            for key, known in self._open.items()
            if self._is_of_whole_job(known.finding) and known.finding.final and key not in reported
        ]
        return [self._replace(key, now) for key in taken_over]

    def _yield(self, now: float, reported: dict[_Key, Finding]) -> list[Change]:
        """Drops what rules report of a thing that a detector names, and closes what they reported of it before;
        what is explained by other findings is reported with them."""
        candidates = [*reported.values(), *(known.finding for known in self._open.values())]
        named = {finding.id for finding in candidates if not finding.rule}

        def yields(finding: Finding) -> bool:
            return bool(finding.rule) and not named.isdisjoint((finding.id, *finding.yields_to))

        dropped = [reported.pop(key) for key, finding in list(reported.items()) if yields(finding)]
        replaced = [
            self._replace(key, now) for key, known in list(self._open.items()) if yields(known.finding)
        ]
        known = [*reported.values(), *(one.finding for one in self._open.values())]
        unnamed = {key for key, one in reported.items() if self.precedence.is_named(one, known)}
        replaced += [self._replace(key, now) for key in unnamed & self._open.keys()]
        for key in unnamed:
            del reported[key]
        for key, finding in list(reported.items()):
            same = (one for one in dropped if one.id == finding.id)
            open_now = (known.finding for known in self._open.values())
            reported[key] = self.precedence.retold(finding, [*same, *reported.values(), *open_now])
        return [change for change in replaced if change.finding.key not in reported]

    def _open_or_update(self, now: float, reported: dict[_Key, Finding]) -> list[Change]:
        changes = []
        for key, told in sorted(reported.items(), key=lambda pair: self._reading_order(pair[1])):
            finding = replace(told, retryable=retryable(told))
            known = self._open.get(key)
            if known is None:
                self._open[key] = _Open(finding, now, now)
                self.opened_total[(finding.id, finding.severity.value)] += 1
                changes.append(Change(ChangeKind.OPENED, finding, now, now))
                continue
            before, known.finding, known.last_seen = known.finding, finding, now
            if _differs(before, finding):
                changes.append(Change(ChangeKind.UPDATED, finding, now, known.opened_at))
        return changes

    def _resolve(self, now: float, reported: dict[_Key, Finding]) -> list[Change]:
        """Closes what is reported no more. A job that was ended, or failed, while something was wrong did not
        get over it: what is open stays open."""
        over, joined = self.job.broken, self.job.cluster.joined(now)
        displaced = {one.id for one in reported.values() if not one.rule} & self.precedence.one_at_a_time
        changes = []
        for key, known in [(key, known) for key, known in self._open.items() if key not in reported]:
            finding = known.finding
            by_job_hub = bool(finding.reported_by) and joined  # it knows better by now
            became = not finding.rule and self.precedence.became(finding, reported.values())
            by_another = became or (finding.id in displaced and not finding.rule)
            superseded = by_job_hub or by_another
            if not superseded and (finding.final or (over and not finding.reported_by)):
                continue
            if not became and now - known.last_seen < finding.holds_seconds:
                continue
            del self._open[key]
            over_at, moved = min(now, known.last_seen + self._check_seconds), self._moved_again(finding)
            replaced = by_another or (over and by_job_hub)
            over_now = (known.opened_at, over_at, moved, replaced)
            changes.append(Change(ChangeKind.RESOLVED, finding, now, *over_now))
        return changes

    def _replace(self, key: _Key, now: float) -> Change:
        """Closes what another finding reports better."""
        known = self._open.pop(key)
        return Change(ChangeKind.RESOLVED, known.finding, now, known.opened_at, replaced=True)

    def _is_of_whole_job(self, finding: Finding) -> bool:
        return finding.id in self.precedence.whole_job and not finding.rule and not finding.reported_by

    def _moved_again(self, finding: Finding) -> tuple[int, ...]:
        """Those of its ranks that live and moved since it began, of a finding that ranks do not move: a step
        that others waited in is made by all."""
        if finding.id not in self.precedence.stands_still:
            return ()
        after = finding.since + self._check_seconds
        step = bool(finding.waiting_ranks) and (self.job.progress.iteration_at or 0.0) > after
        named = finding.ranks or finding.waiting_ranks
        ranks = [self.job.ranks[number] for number in named if number in self.job.ranks]
        return tuple(rank.rank for rank in ranks if rank.alive and (step or rank.last_moved(STRONG) > after))

    # -- reading ------------------------------------------------------------------------------------------

    def active(self) -> list[Finding]:
        """Findings open now, gravest first; of equally grave ones, causes before what follows from them."""
        return sorted((known.finding for known in self._open.values()), key=self._reading_order)

    def history(self) -> list[Change]:
        return list(self._past)

    def over(self) -> list[Change]:
        """Findings that resolved, one each time, the latest first; without those that another one took the
        place of."""
        resolved = (change for change in reversed(self._past) if change.kind is ChangeKind.RESOLVED)
        return [change for change in resolved if not change.replaced]

    def all_findings(self) -> list[Finding]:
        """The open ones, then those that are over."""
        return [*self.active(), *(change.finding for change in self.over())]

    def opened_at(self, finding: Finding) -> float:
        """When it opened, of one that is open."""
        return self._open[finding.key].opened_at

    def not_checked(self, but: str = "") -> list[NotChecked]:
        """What could not be checked; without what the detector of that name reports."""
        lines = self.job.not_checked()
        for detector in (one for one in self._detectors if one.name != but):
            lines.extend(line for line in detector.not_checked(self.job) if line not in lines)
        return lines

    def _reading_order(self, finding: Finding) -> tuple[int, int, float, str]:
        return (-finding.severity.level, self.precedence.depth(finding), finding.since, finding.id)


def _differs(before: Finding, after: Finding) -> bool:
    """Whether it is reported again: not for a growing number in the sentence."""

    def compared(finding: Finding) -> tuple[object, ...]:
        return (finding.severity, finding.klass, finding.cause, finding.ranks, finding.waiting_ranks)

    return compared(before) != compared(after)
