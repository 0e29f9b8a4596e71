"""What findings are to each other: the kinds of rows that a table of precedence has, and what the engine asks
of one.

It names no finding. The table itself is beside the detectors: `detectors/precedence.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from diag.model import Finding


@dataclass(frozen=True, slots=True)
class Kind:
    """A finding by its id, or only one class of it."""

    id: str
    klass: str = ""


@dataclass(frozen=True, slots=True)
class ReadAfter:
    """Of equally severe findings a consequence is read after its cause; without `cause`, after all those that
    are no consequences."""

    consequence: Kind
    cause: Kind | None
    because: str


@dataclass(frozen=True, slots=True)
class _Of:
    """What holds for one finding, and why."""

    finding: str
    because: str


class OneAtATime(_Of):
    """Reported of one subject only: when a detector names another, that one takes its place."""


@dataclass(frozen=True, slots=True)
class Becomes:
    """One claim about one thing, made weaker or stronger: either takes the place of the other, and neither is over by
    that."""

    findings: tuple[str, ...]
    because: str


class WholeJob(_Of):
    """Only who sees all ranks can be right about it: withheld while the job hub judges."""


class StandsStill(_Of):
    """Its ranks do not move: those that do are listed when it is over, and what is open at the end stays."""


@dataclass(frozen=True, slots=True)
class WhereUnnamed:
    """The fallback where nothing else names it: withheld beside a finding that `names` what happened; that is given the
    other one, and it."""

    finding: str
    names: Callable[[Finding, Finding], bool]
    because: str


@dataclass(frozen=True, slots=True)
class Retold:
    """Written anew beside the findings that explain it. `retell` is given the finding, what rules report under
    the same id, and all others but those of `unexplained_by`."""

    finding: str
    retell: Callable[[Finding, Sequence[Finding], Sequence[Finding]], Finding]
    unexplained_by: tuple[str, ...]
    because: str


Row = ReadAfter | OneAtATime | Becomes | WholeJob | StandsStill | WhereUnnamed | Retold


class Precedence:
    """A table, as the engine reads it. Raises ValueError for one in which something follows from itself."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = tuple(rows)
        self.whole_job, self.one_at_a_time, self.stands_still = (
            frozenset(row.finding for row in self.rows if isinstance(row, kind))
            for kind in (WholeJob, OneAtATime, StandsStill)
        )
        self._unnamed = {row.finding: row.names for row in self.rows if isinstance(row, WhereUnnamed)}
        self._retold = {row.finding: row for row in self.rows if isinstance(row, Retold)}
        self._claims = {
            name: frozenset(row.findings) - {name}
            for row in self.rows
            if isinstance(row, Becomes)
            for name in row.findings
        }
        causes: dict[Kind, list[Kind | None]] = {}
        for row in self.rows:
            if isinstance(row, ReadAfter):
                causes.setdefault(row.consequence, []).append(row.cause)
        self._depths = {kind: _depth(kind, causes, ()) for kind in causes}

    def depth(self, finding: Finding) -> int:
        """How many consequences of one another lead to it: 0 for what follows from nothing, -1 for a fallback, which is
        reported only where it says more than the others."""
        # class other only looks like an error
        if finding.id in self._unnamed and finding.klass != "other" and finding.severity.counts:
            return -1
        exact = self._depths.get(Kind(finding.id, finding.klass))
        return self._depths.get(Kind(finding.id), 0) if exact is None else exact

    def became(self, finding: Finding, reported: Collection[Finding]) -> bool:
        """Another claim about the same thing is reported now."""
        others = self._claims.get(finding.id, frozenset())
        return any(one.id in others and one.subject == finding.subject and not one.rule for one in reported)

    def is_named(self, finding: Finding, beside: Iterable[Finding]) -> bool:
        """Whether another finding says it better."""
        names = self._unnamed.get(finding.id)
        level = finding.severity.level
        return names is not None and any(
            one.id != finding.id and one.severity.level >= level and names(one, finding) for one in beside
        )

    def retold(self, finding: Finding, beside: Collection[Finding]) -> Finding:
        """The finding as it reads beside these. What a rule reports stays as it is."""
        row = self._retold.get(finding.id)
        if row is None or finding.rule:
            return finding
        own = [one for one in beside if one.id == finding.id and one.rule]
        others = [one for one in beside if one.id not in (finding.id, *row.unexplained_by)]
        return row.retell(finding, own, others)


def _depth(kind: Kind, causes: dict[Kind, list[Kind | None]], below: tuple[Kind, ...]) -> int:
    if kind in below:
        raise ValueError(f"{kind} follows from itself")
    deeper = (0 if cause is None else _depth(cause, causes, (*below, kind)) for cause in causes.get(kind, ()))
    return 1 + max(deeper, default=-1)
