"""`python -m tests.labs.bench.history`: docs/benchmarks.md from history.jsonl, which has one line for each `make
bench`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .machine import scrubbed
from .missed import EXPLAINED
from .table import SCHEMA, Row, markdown

__all__ = ["FILE", "PAGE", "append", "header", "page_of", "read", "render"]

FILE = Path(__file__).with_name("history.jsonl")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"
# The lines between which the page is made; the others are written by hand.
_BEGIN, _END = "<!-- made by python -m tests.labs.bench.history -->", "<!-- end of what is made -->"
_RUNS = 12  # shown of the history, newest first
# Of these the history is shown: key, the word in the table, unit, factor.
_SHOWN = (
    ("P1", "sample", "diag", "ms", 1000.0), ("P4 stack", "loss a sample", "diag_ms", "ms", 1.0),
    ("P7 8 ranks", "dump, 8 ranks", "diag", "ms", 1000.0), ("P7 64 ranks", "dump, 64 ranks", "diag", "ms", 1000.0),
    ("hub memory, 8", "hub", "diag", "MB", 1.0), ("sidecar memory, 8", "sidecar", "diag", "MB", 1.0),
    ("hub CPU, 8", "hub", "diag", "% of a core", 100.0), ("rules speed", "lines a second", "diag", "thousand", 0.001),
    ("run delay", "delay of a command", "diag", "ms", 1000.0),
)  # fmt: skip


def header(machine: Mapping[str, Any]) -> list[str]:
    """What stands above a table."""
    loads = machine["load_meanwhile"]
    typical = f"{statistics.median(loads):.1f}, most {max(loads):.1f}" if loads else "not read"
    return [
        f"{machine['started']}, commit {machine.get('commit') or 'unknown'}: {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, Python {machine['python']}",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        f"took {machine['seconds']} s{' (--quick)' if machine['quick'] else ''}; load while measuring: median {typical} "
        "(the benchmark itself keeps 1 to 2 cores busy)",
        *([machine["note"]] if machine.get("note") else []),
        "intervals are bootstrap 95 %; `unclear`: the goal lies inside the interval; MB are 1e6 bytes; CPU in % of one core",
    ]


def append(machine: Mapping[str, Any], rows: Sequence[Row], path: Path = FILE) -> None:
    """One line, without this machine's name or paths."""
    text = json.dumps(
        {"schema": SCHEMA, "machine": dict(machine), "rows": [asdict(row) for row in rows]},
        ensure_ascii=False,
    )
    with path.open("a", encoding="utf-8") as file:
        file.write(scrubbed(text) + "\n")


def read(path: Path = FILE) -> list[dict[str, Any]]:
    """Oldest first."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def page_of(text: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The page with what is made of the history in its place. Raises ValueError for a page without that
    place."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"no place between {_BEGIN!r} and {_END!r}")
    return f"{before}{_BEGIN}\n\n{_made(runs)}\n{_END}{after}"


def render(page: Path = PAGE, path: Path = FILE) -> Path:
    page.write_text(page_of(page.read_text("utf-8"), read(path)), "utf-8")
    return page


def _made(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return "No run is recorded yet.\n"
    newest = runs[-1]
    rows = [Row(**row) for row in newest["rows"]]
    counted = {
        word: sum(row.verdict == word for row in rows)
        for word in ("met", "missed", "unclear", "not measured")
    }
    parts = [
        "## The newest run",
        "",
        "Goals: " + ", ".join(f"{count} {word}" for word, count in counted.items() if count) + ".",
        "",
        markdown(header(newest["machine"]), rows),
        "## Missed goals",
        "",
        _missed(rows),
        "",
        "## Runs so far",
        "",
        _past(runs),
    ]
    return "\n".join(parts)


def _missed(rows: Sequence[Row]) -> str:
    lines = [
        f"- **{row.what}**: {EXPLAINED.get(row.key, 'not explained yet.')}"
        for row in rows
        if row.verdict == "missed"
    ]
    return "\n".join(lines) or "None in the newest run."


def _past(runs: Sequence[Mapping[str, Any]]) -> str:
    heads = ["when", "commit", "cores", "load"] + [f"{word}, {unit}" for _, word, _, unit, _ in _SHOWN]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for run in list(runs)[: -_RUNS - 1 : -1]:
        machine, values = run["machine"], {row["key"]: row["values"] for row in run["rows"]}
        load = statistics.median(machine["load_meanwhile"]) if machine["load_meanwhile"] else 0.0
        told = [
            f"{factor * values[key][name]:.3g}" if name in values.get(key, ()) else ""
            for key, _, name, _, factor in _SHOWN
        ]
        lines.append(
            "| "
            + " | ".join(
                [
                    machine["started"][:16],
                    machine.get("commit") or "",
                    str(machine["cores"]),
                    f"{load:.1f}",
                    *told,
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    render()
    sys.exit(0)
