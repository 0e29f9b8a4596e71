"""The table of findings: what is the same each time that a finding is made (severity, confidence, advice)
comes from the `findings.yaml` beside its detector, by the finding's id and its cause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diag.model import JOB, Confidence, Evidence, Finding, Severity, numbered
from diag.text.tables import load_table
from diag.text.units import format_ranks
from diag.text.words import has_any

Lines = Mapping[int | None, tuple[float, str]]  # a line of each rank's output: when it came, its text
_FOLDER = Path(__file__).parent
_SHOWN = 3  # lines that are kept as evidence
_LONGEST = 500


def load(name: str) -> dict[str, Any]:
    """The mapping in a YAML file of this package, such as `checkpoint/lines.yaml`."""
    return load_table(_FOLDER / name)


def load_all() -> None:
    """Read the tables before anything fails: a full disk, or no file that may still be opened, is then too late."""
    for path in (*_FOLDER.glob("*.yaml"), *_FOLDER.glob("*/*.yaml")):
        load_table(path)


@cache
def table() -> dict[str, dict[str, Any]]:
    """Of each finding its own row; `causes` holds what one cause has otherwise."""
    files = sorted((_FOLDER / "findings.yaml", *_FOLDER.glob("*/findings.yaml")))
    return {name: row for path in files for name, row in load_table(path).items()}


def row(name: str, cause: str = "") -> dict[str, Any]:
    """The fields that the table has for this finding, those of the cause before its own."""
    own = table()[name]
    return {**own, **own.get("causes", {}).get(cause, {})}


def with_words(text: str, words: Mapping[str, str]) -> str:
    """The text with these words in its places.

    >>> with_words("drop {device} from ${NAME}", {"device": "mlx5_0"})
    'drop mlx5_0 from ${NAME}'
    """
    for place, word in words.items():
        text = text.replace(f"{{{place}}}", word)
    return text


def finding(
    name: str,
    cause: str = "",
    *,
    summary: str,
    since: float,
    evidence: Sequence[Evidence] = (),
    subject: str = JOB,
    words: Mapping[str, str] | None = None,
    count: int = 0,
    **given: Any,
) -> Finding:
    """A finding with the fields of its row; `given` are other fields, or the same where they are not None. Of the
    advice, `words` are put into its places: {device}, and it is `numbered` for so many ranks or nodes. Raises
    KeyError for a finding without a row."""
    fields = row(name, cause) | {key: value for key, value in given.items() if value is not None}
    advice = numbered(fields["advice"], count) if count else fields["advice"]
    return Finding(
        id=name,
        subject=subject,
        cause=cause,
        summary=summary,
        since=since,
        evidence=tuple(evidence),
        severity=Severity(fields["severity"]),
        confidence=Confidence(fields["confidence"]),
        advice=with_words(advice, words or {}),
        klass=fields.get("klass", ""),
        ranks=fields.get("ranks", ()),
        waiting_ranks=fields.get("waiting_ranks", ()),
        holds_seconds=fields.get("holds_seconds", 0.0),
        final=fields.get("final", False),
    )


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A row of memory/lines.yaml."""

    words: tuple[str, ...]
    without: tuple[str, ...]
    pattern: re.Pattern[str]

    @classmethod
    def named(cls, name: str) -> LinePattern:
        known = load("memory/lines.yaml")[name]
        return cls(tuple(known["words"]), tuple(known.get("without", ())), re.compile(known["pattern"]))

    def matches(self, text: str) -> bool:
        if not has_any(text, self.words) or has_any(text, self.without):
            return False
        return self.pattern.search(text) is not None


def ranks_of(lines: Lines) -> tuple[int, ...]:
    """The ranks that these lines are of, in order."""
    return tuple(sorted(rank for rank in lines if rank is not None))


def since_of(lines: Lines) -> float:
    """When the first of them came."""
    return min(at for at, _ in lines.values())


def quoted(lines: Lines) -> tuple[Evidence, ...]:
    """The first of these lines as evidence."""
    return tuple(
        Evidence("output", text[:_LONGEST], at, rank) for rank, (at, text) in list(lines.items())[:_SHOWN]
    )


def who(ranks: Sequence[int], otherwise: str = "the job") -> str:
    """These ranks, or what to call them where none is known.

    >>> who([0, 1]), who([])
    ('ranks 0-1', 'the job')
    """
    return format_ranks(ranks) if ranks else otherwise


def on_ranks(ranks: Sequence[int]) -> str:
    """` on ranks 0-3`, or nothing where no rank is known."""
    return f" on {format_ranks(ranks)}" if ranks else ""
