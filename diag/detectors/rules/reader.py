"""A log, line by line, into the hits of rules: where an exception ends, what is only printed data."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from diag.detectors.rules.ruleset import LONGEST, RuleSet
from diag.detectors.rules.schema import Rule
from diag.knowledge.data_samples import SampleTracker, may_begin
from diag.knowledge.log_prefix import message_of, without_outer
from diag.knowledge.tracebacks import FRAME, NOT_ITS_END, behind_prefix
from diag.model.observations import PlainLines, QuietLines
from diag.state.log import lines_of

# Lines that are kept above the newest: a frame, its source and carets, a message of several lines.
_ABOVE = 12
_KEPT = 4  # hits of one rule: the first ones
_MOST_RANKS = 4096

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w{0,100}\.){0,12}[A-Za-z_]\w{0,100}(?::|$)")
_NAMED = re.compile(
    r"(?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception|Interrupt|Exit|Invalid|Timeout|Failure)(?::|$)"
)
_CLASS = re.compile(
    r"(?:\w{1,100}\.){0,12}(?:[A-Z]|(?<=\.)[a-z])\w{0,100}(?::|$)"
)  # gzip.BadGzipFile, socket.gaierror
_NO_FAILURE = ("DEBUG", "INFO", "WARNING")  # levels at which a program logs what it goes on from
# The two sentences between the tracebacks of one failure (CPython 3.8-3.14).
_CHAINS = (
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception",
)


@dataclass(slots=True)
class Hit:
    """A rule's line. `number` counts lines from 1 over all that were read; `above` are the lines before it,
    oldest first."""

    rule: Rule
    at: float
    number: int
    rank: int | None
    text: str
    groups: Mapping[str, str]
    uncaught: bool  # torch's own hook has put the rank before it
    alone: bool  # an exception, and the frames of its traceback are not above it
    above: tuple[str, ...]
    literal: int  # its length: the longer says more
    ranks: set[int] = field(default_factory=set)
    times: int = 1
    last_at: float = 0.0
    # patterns of `also` and `unless` seen `within` seconds of it
    beside: set[tuple[str, int]] = field(default_factory=set)


class LogReader:
    """Told each line, with its rank where known. Keeps of each rule the first hits, of each other pattern the
    last time seen."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.lines = 0
        self.hits: dict[str, list[Hit]] = {}
        self.alone: dict[str, list[Hit]] = {}
        self._seen: dict[tuple[str, str, int], float] = {}  # of `also` and `unless`: when last
        self._recent: dict[str, deque[float]] = {}
        self._above: dict[int | None, deque[str]] = {}
        self._samples = SampleTracker()
        self._ignored: set[int | None] = set()  # whose open traceback ends nothing

    def read(self, at: float, rank: int | None, text: str) -> None:
        self.lines += 1
        above = self._above.get(rank)
        if above is None:
            if len(self._above) >= _MOST_RANKS:
                return
            above = self._above[rank] = deque(maxlen=_ABOVE)
        over = bool(self._ignored) and rank in self._ignored and not text[:1].isspace() and text != ""
        if "Traceback (most recent call last)" in text and above and NOT_ITS_END.search(above[-1]):
            self._ignored.add(rank)
            over = False
        candidates = self.rules.candidates(text)
        if candidates or self._samples.is_open(rank) or may_begin(text):
            self._judge(at, rank, text, candidates, above)
        above.append(text)
        if over:
            self._ignored.discard(rank)

    def read_run(self, at: float, run: PlainLines | QuietLines) -> None:
        """Of lines that no reader has a word for those that a rule has one for, each with what stands above it."""
        rank = run.rank
        if self._samples.is_open(rank) or rank in self._ignored:
            for line in lines_of(run):
                if not line.bar:
                    self.read(at, rank, line.text)
            return
        above = self._above.get(rank)
        if above is None:
            if len(self._above) >= _MOST_RANKS:
                return
            above = self._above[rank] = deque(maxlen=_ABOVE)
        bare: Callable[[str], str] = str
        if isinstance(run, QuietLines):
            whole = "\n".join(line.text for line in run.lines if not line.bar)
        else:
            whole, bare = run.text, without_outer
        told = set(self.rules.lines_in(whole))
        if told:
            lines, done = whole.split("\n"), 0
            for place, text in enumerate(lines):
                if text[:LONGEST] in told:
                    above.extend(map(bare, lines[max(done, place - _ABOVE) : place]))
                    self.read(at, rank, bare(text))
                    done = place + 1
            above.extend(map(bare, lines[max(done, len(lines) - _ABOVE) :]))
        else:
            above.extend(run.last[-_ABOVE:])

    def _judge(
        self, at: float, rank: int | None, text: str, candidates: list[int], above: deque[str]
    ) -> None:
        message = message_of(text)
        if self._samples.is_of_data(rank, message):
            return
        ends: _Ends | None = None
        seen: set[str] = set()
        for match in self.rules.find(candidates, message.text):
            rule = match.rule
            if match.role != "match":
                self._seen[(rule.id, match.role, match.number)] = at
                for hit in (*self.hits.get(rule.id, ()), *self.alone.get(rule.id, ())):
                    if abs(at - hit.at) <= rule.within:
                        hit.beside.add((match.role, match.number))
                continue
            if rule.id in seen:
                continue
            seen.add(rule.id)
            uncaught = message.rank is not None
            if rule.kind == "exception":
                if ends is None:
                    ends = _Ends.NOTHING if rank in self._ignored else _ends(message.text, above, uncaught)
                if ends is _Ends.NOTHING or (ends is _Ends.SEEN_ALONE and message.level in _NO_FAILURE):
                    continue
            alone = rule.kind == "exception" and ends is _Ends.SEEN_ALONE
            literal = len(rule.match[match.number].literal)
            around = (uncaught, alone, tuple(above), literal)
            self._note(Hit(rule, at, self.lines, rank, text, match.groups, *around, last_at=at))

    def _note(self, hit: Hit) -> None:
        if hit.rank is not None:
            hit.ranks.add(hit.rank)
        if hit.rule.count > 1:
            recent = self._recent.setdefault(hit.rule.id, deque(maxlen=hit.rule.count))
            recent.append(hit.at)
            if len(recent) < hit.rule.count or hit.at - recent[0] > hit.rule.within:
                return
        for role, patterns in (("also", hit.rule.also), ("unless", hit.rule.unless)):
            for number in range(len(patterns)):
                seen = self._seen.get((hit.rule.id, role, number))
                if seen is not None and abs(seen - hit.at) <= hit.rule.within:
                    hit.beside.add((role, number))
        known = (self.alone if hit.alone else self.hits).setdefault(hit.rule.id, [])
        for place, old in enumerate(known):
            if old.groups == hit.groups:
                if not self.holds(old):  # it was over, and is here again
                    known[place] = hit
                    return
                old.times += 1
                old.last_at = hit.at
                if hit.rank is not None and len(old.ranks) < _MOST_RANKS:
                    old.ranks.add(hit.rank)
                return
        if len(known) < _KEPT:
            known.append(hit)

    def survived(self, number: int) -> None:
        """The job went on after this line: errors up to it ended nothing, and must not get in the way of
        the one that does."""
        for hits in (self.hits, self.alone):
            for rule_id, known in list(hits.items()):
                if known[0].rule.when == "failed" and known[0].number <= number:
                    hits[rule_id] = [hit for hit in known if hit.number > number]
                    if not hits[rule_id]:
                        del hits[rule_id]

    def sample_is_over(self) -> None:
        """Steps are made: what is printed now is no sample of the data any more."""
        self._samples.over()

    def standing(self, *, alone: bool = False) -> list[Hit]:
        """Hits that hold, of each line the one that says most; lines that are benign have none. `alone`: those of
        exceptions without a traceback instead."""
        lines: dict[int, list[Hit]] = {}
        for known in (self.alone if alone else self.hits).values():
            for hit in known:
                if self.holds(hit):
                    lines.setdefault(hit.number, []).append(hit)
        found = []
        for hits in lines.values():
            beaten = {less for hit in hits for less in hit.rule.over}
            best = max(
                (hit for hit in hits if hit.rule.id not in beaten), key=lambda hit: hit.literal, default=None
            )
            if best is not None and best.rule.role != "benign":
                found.append(best)
        return found

    def holds(self, hit: Hit) -> bool:
        """Whether what the rule wants beside its line was seen, and what it does not want was not."""
        if any(("also", number) not in hit.beside for number in range(len(hit.rule.also))):
            return False
        return not any(role == "unless" for role, _ in hit.beside)


class _Ends(Enum):
    """What a line ends that may name an exception. SEEN_ALONE: the frames above it are missing, which is so in an
    excerpt, and of what a program prints of others' errors."""

    NOTHING = 0
    TRACEBACK = 1
    SEEN_ALONE = 2


def _ends(message: str, above: deque[str], uncaught: bool) -> _Ends:
    """`IndexError: list index out of range` below frames; what an exception is called is anybody's choice."""
    if not _EXCEPTION.match(message):
        # pasted with the indent or the bars of what it stood in
        bare = message.lstrip(" |+")
        return _Ends.SEEN_ALONE if _CLASS.match(bare) or behind_prefix(message) else _Ends.NOTHING
    traced = False
    for line in reversed([message_of(line).text for line in above]):
        if NOT_ITS_END.match(line):
            return _Ends.NOTHING
        if any(chain in line for chain in _CHAINS):
            break
        traced |= FRAME.match(line) is not None
    if traced or (uncaught and _NAMED.match(message) is not None):
        return _Ends.TRACEBACK
    return _Ends.SEEN_ALONE if _CLASS.match(message) is not None else _Ends.NOTHING
