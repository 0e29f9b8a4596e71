"""The nouns that everything in diag speaks: who runs where, what was recorded, what was found.

It imports nothing of diag. Facts that a detector may know are in `observations`; how records become
findings is in `engine`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_RANKS = 1 << 20  # ten times the largest jobs there are; more is no job
_PAIR = re.compile(r"\[([^|\[\]]*)\|([^|\[\]]*)\]")
_LIVE = re.compile(r"<live>(.*?)</live>(\w?)", re.DOTALL)
_LATEST = 1e11  # the year 5138: the grid of checks is of whole seconds, and these must still be exact

JOB = "job"  # the subject of a finding about the whole job

Payload = Any  # JSON: what a source read, unparsed


class Severity(str, enum.Enum):
    """How much it matters to the job. Only warning and critical count as found (exit code 10)."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def level(self) -> int:
        return ("info", "warning", "critical").index(self.value)

    @property
    def counts(self) -> bool:
        return self is not Severity.INFO


class Confidence(str, enum.Enum):
    """How sure the cause is: high = two independent channels agree, low = the best guess of what was seen."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one rank lives. `start_ticks` (field 22 of /proc/PID/stat) distinguishes a reused pid from the old
    process."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    start_ticks: int = 0
    node_rank: int = 0
    local_world_size: int = 0
    launcher: str = "local"

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Placement:
        """Raises KeyError, TypeError, ValueError or OverflowError for what is no placement."""
        words = {name: str(data[name]) for name in ("host", "launcher") if name in data}
        numbers = {name: int(data[name]) for name in cls.__slots__ if name in data and name not in words}
        if not 0 <= numbers["rank"] < _MOST_RANKS or not 0 <= numbers["world_size"] <= _MOST_RANKS:
            raise ValueError("no rank of a job")
        return cls(**numbers, **words)  # type: ignore[arg-type]


def _rank(value: Any) -> int:
    if not 0 <= value < _MOST_RANKS:
        raise ValueError("no rank")
    return int(value)


def _time(value: Any) -> float:
    if not 0 <= value <= _LATEST:  # NaN and the infinities too
        raise ValueError("no time")
    return float(value)


@dataclass(frozen=True, slots=True)
class Record:
    """One raw reading as it goes to the journal.

    `source` names the parser (sources.PARSERS), `payload` is JSON as the source read it. `at` is the engine's
    time in seconds since the epoch, stamped once, when the engine's owner takes the record from its queue;
    `emitted` is the source's own clock. `rank` is None for readings of the node or the job.
    """

    source: str
    payload: Payload
    rank: int | None = None
    host: str = ""
    emitted: float | None = None
    at: float = 0.0

    @property
    def read_at(self) -> float:
        """When the source read it, by its own clock where it gave it."""
        return self.at if self.emitted is None else self.emitted

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"at": self.at, "source": self.source, "payload": self.payload}
        if self.rank is not None:
            data["rank"] = self.rank
        if self.host:
            data["host"] = self.host
        if self.emitted is not None:
            data["emitted"] = self.emitted
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Raises KeyError, TypeError or ValueError for what is no record; the journal reader turns that into
        a note."""
        rank = data.get("rank")
        emitted = data.get("emitted")
        return cls(
            source=str(data["source"]),
            payload=data["payload"],
            rank=None if rank is None else _rank(rank),
            host=str(data.get("host", "")),
            emitted=None if emitted is None else _time(emitted),
            at=_time(data["at"]),
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reading that a finding rests on. `excerpt` is the raw text, trimmed; `kind` is the source's name."""

    kind: str
    excerpt: str
    at: float
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "at": self.at, "kind": self.kind, "excerpt": self.excerpt}


@dataclass(frozen=True, slots=True)
class Ground:
    """Why a job will not go on by itself: `kind` is one of a closed list (`detectors/hang/grounds.py`), `fact` what it
    rests on here."""

    kind: str
    fact: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "fact": self.fact}


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, who caused it, why we think so and what to change. `ranks` are culprits, never victims."""

    id: str
    subject: str
    severity: Severity
    confidence: Confidence
    summary: str
    advice: str  # of which `what_holds`
    since: float
    klass: str = ""
    cause: str = ""
    ranks: tuple[int, ...] = ()
    waiting_ranks: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    grounds: tuple[Ground, ...] = ()  # of `hang`
    holds_seconds: float = 0.0  # how long the condition must be absent before the finding is called resolved
    final: bool = False  # a thing that happened (a death, an OOM kill) and cannot un-happen: never resolved
    # of the rule that says so: detectors know more, and one that names the same takes its place
    rule: str = ""
    yields_to: tuple[str, ...] = ()  # findings of detectors beside which it is not reported
    consequence: bool = False  # of a rule for what follows from something else
    seen_alone: bool = False  # in an excerpt that does not tell whether the job ended of it
    hosts: tuple[str, ...] = ()  # nodes that say it, where it was passed up from them
    reported_by: str = ""  # the host of the job hub, where it judges all nodes
    retryable: str = "unknown"  # one of `detectors/retry.py`; the engine puts it in

    @property
    def key(self) -> tuple[str, str]:
        """What makes two findings the same one, now and later."""
        return (self.id, self.subject)

    def to_json(self, *, over: bool = False) -> dict[str, Any]:
        """The shape of `diag.report/1`. `over`: it is, or its processes are gone."""
        return {
            "id": self.id,
            "subject": self.subject,
            "class": self.klass,
            "severity": self.severity.value,
            "confidence": self.confidence.value,
            "ranks": list(self.ranks),
            "waiting_ranks": list(self.waiting_ranks),
            "since": self.since,
            "summary": self.summary,
            "cause": self.cause,
            "advice": what_holds(self.advice, over=over),
            "retryable": self.retryable,
            "evidence": [item.to_json() for item in self.evidence],
            **({"grounds": [ground.to_json() for ground in self.grounds]} if self.grounds else {}),
            **({"rule": self.rule} if self.rule else {}),
            **({"seen_alone": True} if self.seen_alone else {}),
            **({"hosts": list(self.hosts)} if self.hosts else {}),
            **({"told_by": self.reported_by} if self.reported_by else {}),
        }


@dataclass(frozen=True, slots=True)
class NotChecked:
    """What could not be checked, why, and what would make it possible."""

    what: str
    reason: str
    remedy: str = ""  # of which `what_holds`

    def to_json(self, *, over: bool = False) -> dict[str, Any]:
        return {"what": self.what, "reason": self.reason, "remedy": what_holds(self.remedy, over=over)}


class ChangeKind(str, enum.Enum):
    OPENED = "opened"
    UPDATED = "updated"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Change:
    """A finding that opened, became another (ranks, class, severity) or resolved, at the engine's time."""

    kind: ChangeKind
    finding: Finding
    at: float
    opened_at: float = field(default=0.0)
    # of what resolved: `at` comes later where diag waited whether it comes again (holds_seconds)
    over_at: float | None = None
    moved_again: tuple[
        int, ...
    ] = ()  # of a hang that resolved: those of its culprits that were seen to move since
    replaced: bool = False  # resolved because another finding says the same better: it is not over

    @property
    def resolved_at(self) -> float:
        return self.at if self.over_at is None else self.over_at

    def to_json(self) -> dict[str, Any]:
        finding = self.finding.to_json()
        if self.kind is ChangeKind.RESOLVED and not self.replaced:
            finding["resolved_at"] = self.resolved_at
        return {
            "change": self.kind.value,
            "at": self.at,
            "opened_at": self.opened_at,
            "finding": finding,
            **({"moved_again": list(self.moved_again)} if self.moved_again else {}),
            **({"replaced": True} if self.replaced else {}),
        }


def pack_ranks(ranks: Sequence[int]) -> str:
    """Ranks as diag's own documents have them.

    >>> pack_ranks([0, 1, 2, 4, 6, 7])
    '0-2,4,6-7'
    """
    parts: list[str] = []
    start = previous = None
    for rank in [*sorted(set(ranks)), None]:
        if previous is not None and rank is not None and rank == previous + 1:
            previous = rank
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = rank
    return ",".join(parts)


def numbered(text: str, count: int) -> str:
    """A sentence for one or for several: of each pair of words the first or the second. Before names of files
    are put into it.

    >>> numbered("[rank 3|ranks 3-4] [is|are] in [its|their] own code", 2)
    'ranks 3-4 are in their own code'
    """
    return _PAIR.sub(r"\1" if count == 1 else r"\2", text)


def what_holds(text: str, *, over: bool) -> str:
    """Of an advice or a remedy; what stands in <live> is for as long as the processes live that it is about.

    >>> advice = "<live>Rank 1 is stopped: `kill -CONT 81` lets it go on; </live>find who sent SIGSTOP."
    >>> what_holds(advice, over=False), what_holds(advice, over=True)
    ('Rank 1 is stopped: `kill -CONT 81` lets it go on; find who sent SIGSTOP.', 'Find who sent SIGSTOP.')
    """

    def held(part: re.Match[str]) -> str:
        begins = not text[: part.start()].rstrip() or text[: part.start()].endswith((". ", "? "))
        return (part[2].upper() if begins else part[2]) if over else part[1] + part[2]

    return _LIVE.sub(held, text).strip()


def found(document: Mapping[str, Any]) -> bool:
    """Whether a report holds a finding of warning or above, open or over (exit code 10)."""
    return any(
        Severity(finding["severity"]).counts for finding in (*document["findings"], *document.get("past", ()))
    )
