"""`python -m tests.labs.first_sight.score --round 1`: the results of a round held against its truths.

Whether the cause is right and the remedy helps is for a judge, who gets the sheet that this writes and does not
see the score.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .rounds import Truth, default_results, jobs_of, round_folder, truth_of

__all__ = ["Score", "score", "sheet", "table"]

Row = Mapping[str, Any]
Finding = Mapping[str, Any]
_LOUD = ("critical", "warning")
_JUDGEMENT = "cause: right / partly / wrong. Remedy: helps / partly / does not help."


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    honest: bool
    holds_up_only: bool
    went_as_told: bool  # an honest job ended with 0, another one had to be ended
    reported: bool  # a critical finding or a warning at any time
    ranks_right: bool  # those of the finding that is scored
    loudest: str  # the worst severity at any time: critical, warning or empty
    delay: float | None  # when it was first reported, in seconds from the job's start


def score(name: str, row: Row, truth: Truth) -> Score:
    loud = [change for change in row["findings"] if _is_loud(change)]
    severities = {change["finding"]["severity"] for change in loud}
    said = _said(row)
    ended_well = row["ended_by_itself"] and row["exit_code"] == 0
    return Score(
        name=name,
        honest=truth.honest,
        holds_up_only=truth.holds_up_only,
        went_as_told=ended_well if truth.honest else not row["ended_by_itself"],
        reported=bool(loud),
        ranks_right=not truth.honest and bool(said) and frozenset(said[0]["ranks"]) == truth.ranks,
        loudest=next((severity for severity in _LOUD if severity in severities), ""),
        delay=loud[0]["at"] if loud else None,
    )


def _is_loud(change: Mapping[str, Any]) -> bool:
    return change["change"] != "resolved" and change["finding"]["severity"] in _LOUD


def _said(row: Row) -> list[Finding]:
    """What was said last of each finding, first the one that is scored: what stood at the end comes before what
    was taken back, a hang before others, critical before warning, then what was said first."""
    last: dict[tuple[str, str], Finding] = {}
    taken_back = set()
    for change in row["findings"]:
        finding = change["finding"]
        key = (finding["id"], finding["subject"])
        if _is_loud(change):
            last[key] = finding
            taken_back.discard(key)
        elif change["change"] == "resolved":
            taken_back.add(key)
        else:  # lowered to info
            last.pop(key, None)
    order = sorted(
        last, key=lambda key: (key in taken_back, key[0] not in ("hang", "held-up"), _rank(last[key]))
    )
    return [last[key] for key in order]


def _rank(finding: Finding) -> int:
    return _LOUD.index(finding["severity"])


def table(scores: Sequence[Score], not_run: Sequence[str] = ()) -> str:
    """A line for each job, and what they come to. Jobs that did not go as their truth says are not counted."""
    lines = [
        "| job | truth | reported | after s | ranks | as told |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in sorted(scores, key=lambda one: (one.honest, one.name)):
        kind = (
            "honest, holds up" if one.honest and one.holds_up_only else "honest" if one.honest else "held up"
        )
        delay = "" if one.delay is None else f"{one.delay:.0f}"
        ranks = "" if one.honest or not one.reported else "right" if one.ranks_right else "wrong"
        cells = [one.name, kind, one.loudest or "no", delay, ranks, "yes" if one.went_as_told else "**no**"]
        lines.append("| " + " | ".join(cells) + " |")
    counted = [one for one in scores if one.went_as_told]
    held, honest = [one for one in counted if not one.honest], [one for one in counted if one.honest]
    lines += [
        "",
        f"Held up: {len(held)}; reported {sum(one.reported for one in held)}, "
        f"with the right ranks {sum(one.ranks_right for one in held)}.",
        f"Honest: {len(honest)}; with a critical finding {_count(honest, 'critical')}, "
        f"with no more than a warning {_count(honest, 'warning')}.",
    ]
    if odd := [one.name for one in scores if not one.went_as_told]:
        lines.append(f"Not counted, as they did not go as their truth says: {', '.join(sorted(odd))}.")
    if not_run:
        lines.append(f"Not run: {', '.join(sorted(not_run))}.")
    return "\n".join(lines)


def _count(scores: Sequence[Score], severity: str) -> int:
    return sum(one.loudest == severity for one in scores)


def sheet(rows: Mapping[str, Row], truths: Mapping[str, Truth]) -> str:
    """For each job what diag said of it beside what is true."""
    parts = ["# What diag said, and what is true\n"]
    for name, row in rows.items():
        truth = truths[name]
        said = _said(row)
        parts.append(f"## {name}\n")
        parts.append("| | diag | truth |\n| --- | --- | --- |")
        if not said:
            parts.append(_line("", "(nothing)", _told(truth)))
        for finding in said:
            kind = " ".join(
                filter(None, (finding["severity"], finding["id"], finding.get("class"), finding.get("cause")))
            )
            parts.append(_line("kind", kind, "honest" if truth.honest else "held up"))
            parts.append(_line("ranks", _ranks(finding["ranks"]), _ranks(truth.ranks)))
            parts.append(_line("cause", finding.get("summary", ""), truth.what))
            parts.append(_line("remedy", finding.get("advice", ""), truth.remedy))
            # The truth stands beside the finding that is scored; those after it have theirs above.
            truth = Truth(truth.honest, "as above", truth.ranks, "as above" if truth.remedy else "")
        parts.append(f"\n{_JUDGEMENT}\n" if not truth.honest else "")
    return "\n".join(parts) + "\n"


def _told(truth: Truth) -> str:
    kind = "honest" if truth.honest else f"held up by ranks {_ranks(truth.ranks)}"
    return "\n".join(filter(None, (kind, truth.what, truth.remedy)))


def _ranks(ranks: Sequence[int] | frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ranks))) or "none"


def _line(*cells: str | None) -> str:
    safe = ((cell or "").replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return "| " + " | ".join(safe) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.first_sight.score", description=__doc__)
    parser.add_argument("--round", type=int, required=True, metavar="N")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="default build/first_sight/round_N.jsonl"
    )
    parser.add_argument(
        "--sheet", type=Path, metavar="FILE", help="for the judge; default beside the results, -sheet.md"
    )
    options = parser.parse_args(argv)
    results = options.results or default_results(options.round)
    truths = {job.name: truth_of(job) for job in jobs_of(round_folder(options.round))}
    told = [json.loads(line) for line in results.read_text().splitlines()]
    rows = {row["name"]: row for row in told if row["name"] in truths}
    paper = options.sheet or results.with_name(f"{results.stem}-sheet.md")
    paper.write_text(sheet(rows, truths))
    scores = [score(name, row, truths[name]) for name, row in rows.items()]
    print(table(scores, sorted(truths.keys() - rows.keys())))
    print(f"\nThe sheet for the judge: {paper}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
