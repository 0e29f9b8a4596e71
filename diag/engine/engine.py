"""Records in, changes out. Told the time; reads no clock, file, socket or environment.

The live hub, `diag replay` and `diag dump` are thin drivers of this one engine. Whoever owns it stamps `at`
on each record when taking it from the queue (never going back), writes it to the journal and then feeds it
here; the same records fed later give the same changes, which a property test holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diag.detectors.contract import WHOLE_JOB, Detector
from diag.engine.aftermath import explained
from diag.model import STANDING, Change, ChangeKind, Finding, NotChecked, Record
from diag.model.observations import Observation, Parser, PlainLines, Unparsed
from diag.state.job import JobState
from diag.state.rank import STRONG
from diag.state.timeline import Timeline

__all__ = ["CHECK_SECONDS", "Engine"]

# Checks run at whole multiples of this many seconds of told time, however often the driver calls.
CHECK_SECONDS = 1.0
# A gap longer than this (a suspended machine, two captures after one another) is not filled with checks.
_LONGEST_CATCH_UP_SECONDS = 600.0

# What follows from something else that was found, the last consequence last: memory runs out, a rank dies of
# it, its peers wait, and what it was writing is left as it is.
_CONSEQUENCES = {
    ("rank-died", ""): 1,
    ("hang", "gpu_side"): 1,
    ("hang", "peer_lost"): 2,
    ("hang", "peer_not_joined"): 2,
    ("checkpoint-corrupt", "left_behind"): 3,
    ("checkpoint-missing", "left_behind"): 4,
}

# Told of one, the first; its victims may have been heard of before it.
_ONLY_THE_FIRST = frozenset({"rank-died"})


class _Open:
    __slots__ = ("finding", "last_seen", "opened_at")

    def __init__(self, finding: Finding, opened_at: float) -> None:
        self.finding = finding
        self.opened_at = opened_at
        self.last_seen = opened_at


def _reading_order(finding: Finding) -> tuple[int, int, float, str]:
    return (
        -finding.severity.level,
        _CONSEQUENCES.get((finding.id, finding.klass), 0),
        finding.since,
        finding.id,
    )


class Engine:
    """Feeds records to the job state and the detectors, and turns what they say into opened, updated,
    resolved."""

    def __init__(
        self,
        parsers: Mapping[str, Parser],
        detectors: Sequence[Detector],
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._check_seconds = check_seconds  # a log of weeks is not judged at each second of them
        self._parsers = parsers
        self._detectors = detectors
        self._plain_readers = [
            detector for detector in detectors if getattr(detector, "reads_plain_lines", False)
        ]
        self.job = JobState()
        self.timeline = Timeline()
        self.now = 0.0
        self.records = 0
        self.opened_total: Counter[tuple[str, str]] = Counter()
        self._open: dict[tuple[str, str], _Open] = {}
        self._past: list[Change] = []
        self.alone: dict[
            tuple[str, str], Finding
        ] = {}  # what this node by itself says where the job hub's word counts
        self._next_check: float | None = None
        self.place_of: Callable[[str], str] = lambda excerpt: (
            ""
        )  # the file and line that an excerpt stands at
        self.log: dict[str, Any] | None = None  # of plain logs: what they are
        self.finished = False  # no more records come: the job ended, or this was all of the evidence

    # -- driving ------------------------------------------------------------------------------------------

    def feed(self, record: Record) -> list[Change]:
        """Run the checks due up to `record.at`, then take the record in. Returns what changed."""
        changes = self.advance(record.at)
        self.records += 1
        parser = self._parsers.get(record.source)
        if parser is None:
            self._tell(Unparsed(record.rank, record.source, "no parser of this name", ""))
            return changes
        for fact in parser(record):
            self._tell(fact)
        if (
            self.job.save_memory.pressing
        ):  # the kernel kills within the second that the next check may be away
            self.job.save_memory.pressing = False
            changes.extend(self._check(self.now))
        return changes

    def advance(self, now: float) -> list[Change]:
        """Run the checks due up to `now`. A clock that went back is ignored: told time only moves forward."""
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
        """One last check at the end of the evidence, for what the final records told between two grid points."""
        self.finished = True
        return self._check(self.now)

    def _tell(self, fact: Observation) -> None:
        self.job.observe(self.now, fact)
        self.timeline.observe(self.now, fact, self.job)
        # No parser and no detector has a word for plain lines; a rule may.
        for detector in self._plain_readers if type(fact) is PlainLines else self._detectors:
            detector.observe(self.now, fact)

    def _check(self, now: float) -> list[Change]:
        changes: list[Change] = []
        said: dict[tuple[str, str], Finding] = {}
        self.alone = {}
        for detector in self._detectors:
            for finding in detector.check(now, self.job):
                if _is_of_whole_job(finding):
                    self.alone[finding.key] = finding
                elif (
                    finding.key not in said
                    or finding.told_by
                    or (said[finding.key].rule and not finding.rule)
                ):
                    if finding.told_by and finding.key in said:
                        self.alone[finding.key] = said[finding.key]
                    said[finding.key] = finding
        changes.extend(self._leave_to_job_hub(now, said))
        changes.extend(self._yield(now, said))
        for key, finding in sorted(said.items(), key=lambda pair: _reading_order(pair[1])):
            known = self._open.get(key)
            if known is None:
                self._open[key] = _Open(finding, now)
                self.opened_total[(finding.id, finding.severity.value)] += 1
                changes.append(Change(ChangeKind.OPENED, finding, now, now))
                continue
            before, known.finding, known.last_seen = known.finding, finding, now
            if _differs(before, finding):
                changes.append(Change(ChangeKind.UPDATED, finding, now, known.opened_at))
        # A job that was ended, or failed, while something was wrong did not get over it: what is open stays
        # open.
        over = self.job.broken
        firsts = {
            finding.id for finding in said.values() if finding.id in _ONLY_THE_FIRST and not finding.rule
        }
        for key, known in [(key, known) for key, known in self._open.items() if key not in said]:
            told_off = bool(known.finding.told_by) and self.job.cluster.joined(
                now
            )  # the job hub knows better by now
            not_first = (
                known.finding.id in firsts and not known.finding.rule
            )  # so does this detector: another was before it
            replaced = not_first or (over and told_off)
            told_off |= not_first
            if over and not told_off and not known.finding.told_by:
                continue
            if (known.finding.final and not told_off) or now - known.last_seen < known.finding.holds_seconds:
                continue
            del self._open[key]
            over_at, moved = min(now, known.last_seen + self._check_seconds), self._moved_again(known.finding)
            changes.append(
                Change(ChangeKind.RESOLVED, known.finding, now, known.opened_at, over_at, moved, replaced)
            )
        self._past.extend(changes)
        del self._past[:-1000]
        return changes

    def _leave_to_job_hub(self, now: float, said: dict[tuple[str, str], Finding]) -> list[Change]:
        """Of a job of several nodes that another judges: what one node would say of it is kept back, as
        evidence for that one."""
        if not self.job.cluster.joined(now):
            said.update({key: one for key, one in self.alone.items() if key not in said or said[key].rule})
            return []
        changes = []
        for key, known in list(self._open.items()):
            if _is_of_whole_job(known.finding) and known.finding.final and key not in said:
                changes.append(
                    Change(ChangeKind.RESOLVED, known.finding, now, known.opened_at, replaced=True)
                )
                del self._open[key]
        return changes

    def _moved_again(self, finding: Finding) -> tuple[int, ...]:
        """Those of a hang's culprits that live and moved since it began: a step that others waited in is made
        by all."""
        if finding.id not in STANDING:
            return ()
        after = finding.since + self._check_seconds
        step = bool(finding.waiting_ranks) and (self.job.iteration_at or 0.0) > after
        ranks = [self.job.ranks[number] for number in finding.ranks if number in self.job.ranks]
        return tuple(rank.rank for rank in ranks if rank.alive and (step or rank.last_moved(STRONG) > after))

    def _yield(self, now: float, said: dict[tuple[str, str], Finding]) -> list[Change]:
        """Takes away what rules say of a thing that a detector names, and closes what they said of it before."""
        named = {finding.id for finding in said.values() if not finding.rule}
        named |= {known.finding.id for known in self._open.values() if not known.finding.rule}
        changes = []
        told = [finding for finding in said.values() if finding.rule and finding.id == "rank-died"]
        for key, finding in list(said.items()):
            if finding.rule and named.intersection((finding.id, *finding.yields_to)):
                del said[key]
        for key, known in list(self._open.items()):
            if known.finding.rule and named.intersection((known.finding.id, *known.finding.yields_to)):
                if said.get(key) is None:
                    changes.append(
                        Change(ChangeKind.RESOLVED, known.finding, now, known.opened_at, replaced=True)
                    )
                del self._open[key]
        for key, death in list(said.items()):
            if death.id == "rank-died" and not death.rule:
                said[key] = explained(
                    death, [*told, *said.values(), *(one.finding for one in self._open.values())]
                )
        return changes

    # -- reading ------------------------------------------------------------------------------------------

    def active(self) -> list[Finding]:
        """Findings open now, gravest first; of equally grave ones, causes before what follows from them."""
        findings = [known.finding for known in self._open.values()]
        return sorted(findings, key=_reading_order)

    def history(self) -> list[Change]:
        return list(self._past)

    def over(self) -> list[Change]:
        """Findings that resolved, one each time, the latest first; without those that another one took the
        place of."""
        return [
            change
            for change in reversed(self._past)
            if change.kind is ChangeKind.RESOLVED and not change.replaced
        ]

    def resolved(self) -> list[Finding]:
        return [change.finding for change in self.over()]

    def opened_at(self, finding: Finding) -> float:
        """When it opened, of one that is open."""
        return self._open[finding.key].opened_at

    def not_checked(self, but: str = "") -> list[NotChecked]:
        """What could not be looked at; without what the detector of that name says."""
        lines = self.job.not_checked()
        for detector in (one for one in self._detectors if one.name != but):
            lines.extend(line for line in detector.not_checked(self.job) if line not in lines)
        return lines

    def job_word(self) -> str:
        """One word for the job: starting, running, checkpointing, hung, dead, finished, failed or unknown."""
        job = self.job
        if job.returncode is not None:
            return "finished" if job.returncode == 0 else "failed"
        ids = {finding.id for finding in self.active() if finding.severity.counts}
        if "hang" in ids:
            return "hung"
        if any(rank.failed for rank in job.ranks.values()):
            return "dead"
        unseen = not job.ranks and job.iteration is None
        if (
            self.finished
            and job.phase == "launch"
            and not job.argv
            and not job.cluster.nodes
            and job.iteration is None
        ):
            return "unknown"  # nobody watched a job start, and nothing in the evidence tells how far one is
        if unseen or job.phase in ("launch", "rendezvous", "model_load", "data_prep", "comm_init"):
            return "starting"
        if job.phase == "ckpt_save":
            return "checkpointing"
        return "running"


def _is_of_whole_job(finding: Finding) -> bool:
    return finding.id in WHOLE_JOB and not finding.rule and not finding.told_by


def _differs(before: Finding, after: Finding) -> bool:
    """Whether a person must be told again: not for a growing number in the sentence."""

    def face(finding: Finding) -> tuple[object, ...]:
        return (finding.severity, finding.klass, finding.cause, finding.ranks, finding.waiting_ranks)

    return face(before) != face(after)
