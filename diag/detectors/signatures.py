"""What a line of the log shows by the rules: the first real error, apart from what follows from it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from diag.detectors.attempts import attempt_of
from diag.detectors.contract import Detector
from diag.detectors.earlier_start import parsed_since
from diag.detectors.echoed_errors import CASCADE, failed_soon, only_quoted
from diag.detectors.last_words import CRASHES, exceptions
from diag.detectors.memory.messages import format_phase
from diag.model import JOB, Confidence, Evidence, Finding, Severity
from diag.model.observations import KernelLine, LogLine, NcclPlainLines, PlainLines, QuietLines, VersionSeen
from diag.state.reducer import StepMade
from diag.state.view import JobView
from diag.text.units import format_ranks

if TYPE_CHECKING:
    from diag.detectors.rules.reader import Hit
    from diag.detectors.rules.ruleset import RuleSet

# After a failure: checks that know more than a line (limits, exits, the kernel) have reported by then.
_SETTLE_SECONDS = 2.5
_WENT_ON_STEPS = 2  # a peer may report one more step after a rank has raised
# What is printed so soon after a signal that asked the job to end only follows from it: Slurm's scancel and time
# limit send SIGTERM to every process, data workers too, and a rank calls that an error of its own. A save
# that fails later is still named. Ours.
_AFTER_SIGNAL_SECONDS = 10.0
_BEFORE_SIGNAL_SECONDS = 0.5  # the rank's pipe may be read before diag's own signal
_MOST_AFTER = 2  # consequences that are named
_LONGEST_GROUP = 160
_MOST_WORLD = 1 << 17
# CPython 3.11-3.14 below a frame's source:   [rank1]:     ^^^^^^^~~~~
_CARETS = re.compile(r"(?:\[rank\d{1,6}\]:)?[ ^~]*$")
_PLACE = re.compile(r"\{(\w{1,40})\}")


class SignatureDetector(Detector):
    """Of several errors the first that ended the job is named: what the program survived (it made steps, or caught it) is
    none, nor what it only printed (a sample of the data)."""

    name = "signatures"
    listens = (LogLine, PlainLines, QuietLines, NcclPlainLines, KernelLine, StepMade, VersionSeen)

    def __init__(self, rules: RuleSet | None = None) -> None:
        # late: whoever only names detectors needs no YAML, pydantic or RE2
        from diag.detectors.rules.load import packaged
        from diag.detectors.rules.reader import LogReader

        self._reader = LogReader(packaged() if rules is None else rules)
        self._versions: dict[str, str] = {}
        self._steps: list[int] = []  # lines read when each of the last new steps was reported
        self._host_pids = False  # those of the kernel's log are those that diag sees

    def observe(
        self,
        at: float,
        fact: LogLine | PlainLines | QuietLines | NcclPlainLines | KernelLine | StepMade | VersionSeen,
    ) -> None:
        if isinstance(fact, LogLine):
            if not fact.bar:
                self._reader.read(at, fact.rank, fact.text)
        elif isinstance(fact, (PlainLines, QuietLines)):
            self._reader.read_run(at, fact)
        elif isinstance(fact, NcclPlainLines):
            for text in self._reader.rules.lines_in(fact.text):
                self._reader.read(at, fact.rank, text)
        elif isinstance(fact, KernelLine):
            self._host_pids |= fact.host_pids
            self._reader.read(at, None, fact.text)
        elif isinstance(fact, StepMade):
            self._reader.sample_is_over()
            self._steps = [*self._steps[-_WENT_ON_STEPS + 1 :], self._reader.lines]
            if len(self._steps) == _WENT_ON_STEPS:
                self._reader.survived(self._steps[0])
        else:
            self._versions[fact.package] = fact.version

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        hits = [
            hit
            for hit in self._reader.standing()
            if self._reader.rules.fits(hit.rule, self._versions)
            and (hit.rule.source == "log" or not _is_of_another_job(hit, job, self._host_pids))
        ]
        hits = _without_beaten(hits)
        fatal = self._fatal(hits, now, job)
        if fatal is None and job.log.ended is not None:  # an excerpt may begin below the frames
            fatal = self._fatal(_without_beaten(self._reader.standing(alone=True)), now, job)
        if fatal is not None:
            yield fatal
        reported = {fatal.id} if fatal is not None else set()
        for hit in sorted(hits, key=lambda hit: -Severity(hit.rule.severity).level):
            rule = hit.rule
            if rule.when == "always" and rule.role == "root" and rule.finding not in (None, *reported):
                assert rule.finding is not None
                reported.add(rule.finding)
                yield self._finding(hit, [], job, rule.finding)

    def _fatal(self, hits: list[Hit], now: float, job: JobView) -> Finding | None:
        ended = [hit for hit in hits if hit.rule.when == "failed" and self._ended_it(hit, now, job)]
        roots = [hit for hit in ended if hit.rule.role == "root"]
        named = [hit for hit in roots or ended if hit.rule.finding is not None]
        if not named:
            return None
        root = min(named, key=self._order)
        assert root.rule.finding is not None
        after = [hit for hit in ended if hit.number > root.number and hit.rank is not None]
        return self._finding(root, sorted(after, key=lambda hit: hit.number), job, root.rule.finding)

    def _order(self, hit: Hit) -> tuple[bool, bool, int]:
        """Errors that the program went on from come last, then those that it may have caught; else the first."""
        caught = hit.rule.kind == "exception" and not hit.uncaught
        return (self._went_on(hit), caught, hit.number)

    def _went_on(self, hit: Hit) -> bool:
        return len(self._steps) == _WENT_ON_STEPS and self._steps[0] >= hit.number

    def _ended_it(self, hit: Hit, now: float, job: JobView) -> bool:
        if not failed_soon(job, hit.last_at) or self._went_on(hit):
            return False
        if job.returncode is None and now - hit.at < _SETTLE_SECONDS:
            return False
        if hit.rule.source == "log" and _asked_to_end(hit.at, job):
            return False
        if hit.rule.kind != "exception":
            return True
        if hit.rank is None and job.log.ended and parsed_since(hit.text, hit.above, list(job.log.tail)):
            return False
        ranks = [job.ranks[rank] for rank in hit.ranks if rank in job.ranks] or None
        return not only_quoted(job, hit.text, ranks)

    def _finding(self, hit: Hit, after: list[Hit], job: JobView, finding: str) -> Finding:
        rule = hit.rule
        reporting = tuple(sorted(hit.ranks)) or _who_failed(job)
        victims = rule.blame == "others"
        ranks = _blamed(hit) or (_silent(hit, job) if victims else reporting)
        who = format_ranks(reporting) if reporting else "the job"
        groups = {"who": who, **hit.groups}
        phase = format_phase(job, hit.at) if job.phases.then(hit.at) not in ("launch", "ended") else ""
        phase += attempt_of(reporting, hit.at, job)
        kind = "output" if rule.source == "log" else "kmsg"
        evidence = [Evidence(kind, "\n".join([*_frames(hit), hit.text])[-2000:], hit.at, hit.rank)]
        evidence += [
            Evidence("output", f"then: {later.text.strip()[:300]}", later.at, later.rank)
            for later in after[:_MOST_AFTER]
        ]
        sure = hit.uncaught or (rule.when == "always" and rule.source == "kernel")
        confidence = Confidence.HIGH if sure else Confidence.MEDIUM
        if rule.role == "consequence" or rule.status == "experimental":
            confidence = Confidence.LOW
        return Finding(
            id=finding,
            subject=JOB,
            severity=Severity(rule.severity),
            confidence=confidence,
            ranks=ranks,
            waiting_ranks=tuple(rank for rank in reporting if rank not in ranks),
            since=hit.at,
            cause=rule.cause,
            summary=f"{with_groups(rule.summary, groups)}{phase}",
            advice=with_groups(rule.advice, groups),
            evidence=tuple(evidence),
            rule=rule.id,
            consequence=rule.role == "consequence",
            final=rule.when == "failed" or not rule.unless,  # a server that answers again is over
            yields_to=tuple(name for name in rule.follows if name != "rank-died" or _others_died(hit, job)),
        )


def with_groups(text: str, groups: Mapping[str, str]) -> str:
    """A rule's sentence with its {names} filled in; nothing else of it is interpreted.

    >>> with_groups("{who} has no module {module}", {"who": "rank 1", "module": "apex"})
    'rank 1 has no module apex'
    """
    return _PLACE.sub(lambda match: groups.get(match[1], match[0])[:_LONGEST_GROUP], text)


def _without_beaten(hits: Iterable[Hit]) -> list[Hit]:
    """Without those of rules that say less of the same finding, of which another line says more. Two exceptions are two
    events: the one that is known better may have been caught."""
    hits = list(hits)
    beaten = {(less, hit.rule.finding): hit.rule.kind for hit in hits for less in hit.rule.over}

    def stands(hit: Hit) -> bool:
        by = beaten.get((hit.rule.id, hit.rule.finding))
        return by is None or by == hit.rule.kind == "exception"

    return [hit for hit in hits if stands(hit)]


def _is_of_another_job(hit: Hit, job: JobView, host_pids: bool) -> bool:
    """The kernel's log is the whole machine's. A process that it names is the job's by its pid; inside a
    container, whose pids are others, a crash is the job's only where a process of it ended of one."""
    named = hit.groups.get("pid", "")
    if not named.isdecimal() or hit.rank is not None:
        return False
    pid = int(named)
    ranks = (*job.ranks.values(), *job.ranks.past)
    own = {job.run.pid, *(one for rank in ranks for one in (rank.placement.pid, *rank.child_stacks))}
    if pid in own or job.ranks.rank_of_pid(pid) is not None:
        return False
    word = re.compile(rf"\b{pid}\b")
    tails = (job.log.tail, *(rank.tail for rank in ranks if rank.failed))
    if any(word.search(line) for tail in tails for line in tail):
        return False  # a worker that is gone, which its rank reports
    if host_pids or hit.rule.finding != "rank-died":
        return host_pids
    codes = [rank.exit.signal or (rank.exit.exit_code or 0) - 128 for rank in ranks if rank.exit is not None]
    codes += [-job.returncode, job.returncode - 128] if job.returncode else []
    return not any(code in CRASHES for code in codes)


def _asked_to_end(at: float, job: JobView) -> bool:
    asked = job.interrupted_at
    return asked is not None and -_BEFORE_SIGNAL_SECONDS <= at - asked <= _AFTER_SIGNAL_SECONDS


def _frames(hit: Hit) -> list[str]:
    """The last of the traceback above an exception, and of other lines the two before."""
    lines = [line for line in hit.above if not _CARETS.match(line)]
    return lines[-4 if hit.rule.kind == "exception" else -2 :]


def _silent(hit: Hit, job: JobView) -> tuple[int, ...]:
    """Of ranks that all waited for another: the only one that did not say so. An excerpt with lines of one rank alone
    does not show how many there are."""
    silent = set(range(job.world_size)) - hit.ranks if hit.ranks and job.world_size < _MOST_WORLD else set()
    known = len(hit.ranks) > 1 or all(rank in job.ranks for rank in silent)
    return tuple(silent) if known and len(silent) == 1 and len(hit.ranks) < job.world_size else ()


def _others_died(hit: Hit, job: JobView) -> bool:
    """Whether a rank ended by itself that did not print this: then its death is what the others report."""
    ended = _ended_by_themselves(job)
    if hit.ranks or not ended:
        return any(rank not in hit.ranks for rank in ended)
    # The line does not tell whose it is. A rank that was killed did not print it, nor is it the cause where another
    # error is in the output.
    dead = [rank for rank in (*job.ranks.values(), *job.ranks.past) if rank.rank in ended and rank.failed]
    if any(rank.exit is not None and rank.exit.signal not in (None, signal.SIGABRT) for rank in dead):
        return True
    beginning = hit.text.strip()[:80]
    shared = job.log.tail if len(dead) > 1 else ()
    lines = [line for tail in (shared, *(rank.tail for rank in dead)) for line in exceptions(tail)]
    return any(beginning not in line and not CASCADE.search(line) for line in lines)


def _blamed(hit: Hit) -> tuple[int, ...]:
    """Whom the line itself blames: the regex has a group for that."""
    numbers = re.findall(r"\d{1,6}", hit.groups.get("culprits", "")[:400])
    return tuple(sorted({int(number) for number in numbers}))


def _who_failed(job: JobView) -> tuple[int, ...]:
    """Where the line does not say whose it is: the only rank that ended by itself."""
    own = _ended_by_themselves(job)
    return tuple(own) if len(own) == 1 else ()


def _ended_by_themselves(job: JobView) -> set[int]:
    return {
        rank.rank
        for rank in (*job.ranks.values(), *job.ranks.past)
        if rank.failed and rank.exit is not None and rank.exit.signal not in (signal.SIGTERM, signal.SIGINT)
    }
