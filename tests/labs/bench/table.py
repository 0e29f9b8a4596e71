"""The rows of the benchmark, as Markdown for people and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .stats import Interval

__all__ = ["Row", "markdown", "percent", "times", "write"]

_HEADS = ("what", "diag", "peer", "ratio", "goal", "verdict")
SCHEMA = "diag.bench/1"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `values` are its numbers, unrounded. `key` stays from run to run: history goes
    by it."""

    what: str
    diag: str
    peer: str = ""
    ratio: str = ""
    goal: str = ""
    verdict: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    key: str = ""


def percent(value: Interval | float, digits: int = 2) -> str:
    """
    >>> percent(0.0123), percent(Interval(-0.01, 0.0, 0.02))
    ('1.23 %', '0.00 % [-1.00, 2.00]')
    """
    if isinstance(value, Interval):
        low, mid, high = (f"{100 * x + 0.0:.{digits}f}" for x in (value.low, value.mid, value.high))
        return f"{mid} % [{low}, {high}]"
    return f"{100 * value:.{digits}f} %"


def times(measured: float, peer: float) -> str:
    """
    >>> times(1.0, 4.0), times(1.0, 0.0)
    ('0.25', '')
    """
    return f"{measured / peer:.2g}" if peer > 0 and measured > 0 else ""


def markdown(header: Sequence[str], rows: Sequence[Row]) -> str:
    lines = [
        *(f"- {line}" for line in header),
        "",
        "| " + " | ".join(_HEADS) + " |",
        "|---" * len(_HEADS) + "|",
    ]
    lines += [
        "| " + " | ".join(getattr(row, head).replace("|", "\\|") for head in _HEADS) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def write(
    path: Path, header: Sequence[str], facts: Mapping[str, object], rows: Sequence[Row]
) -> tuple[Path, Path]:
    """`path` less its suffix, with .json and .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "machine": facts, "rows": [asdict(row) for row in rows]}
    as_json, as_text = path.with_suffix(".json"), path.with_suffix(".md")
    as_json.write_text(json.dumps(document, indent=1) + "\n")
    as_text.write_text(markdown(header, rows))
    return as_json, as_text
