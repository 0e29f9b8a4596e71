"""The results as a table, and the rates that sum them up."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["markdown", "passed", "summary"]

_WARNED, _FALSE = 0.9, 0.05  # 18 of 20 warned in time, 1 of 20 warned falsely

Row = dict[str, Any]


def markdown(rows: Sequence[Row]) -> str:
    lines = [
        "| trial | grows | what | pace | staging s | meets the limit at save | room | as planned | warned | s before the kill | "
        "in that save | error of the peak |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (row["job"], row["fits"], row["seed"])):
        killed = row.get("killed", not row["fits"])
        warned = ("yes" if row["ok"] else "NO") if killed else ("no" if row["ok"] else "falsely")
        cells = [
            row["trial"],
            row["kind"],
            row["place"] + (", cache" if row["cache"] else ""),
            row["pace"],
            row["seconds_staging"],
            row["fails_at"] or "-",
            row["room"] or "-",
            "yes" if row["as_planned"] else "NO",
            warned,
            row.get("lead", "-"),
            {True: "yes", False: "before"}.get(row.get("in_save", ""), "-"),
            _percent(row.get("errors", ())),
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _percent(errors: Iterable[float]) -> str:
    return " ".join(f"{100 * error:+.0f}" for error in errors) or "-"


def summary(rows: Sequence[Row]) -> str:
    bad, good = _parted(rows)
    errors = [abs(error) for row in rows for error in row.get("errors", ())]
    at_warning = [abs(row["warning_error"]) for row in bad if "warning_error" in row]
    leads = [row["lead"] for row in bad if "lead" in row]
    early = sum(bool(row.get("early")) for row in bad)
    lines = [
        f"saves that do not fit: warned before that save's end in {sum(row['ok'] for row in bad)} of {len(bad)}",
        f"  of these already before the save began: {sum(row.get('in_save') is False for row in bad)}; "
        f"median {_median(leads)} s before the kill",
        f"  an earlier save of the same run, which fitted, was feared falsely in {early}",
        f"runs that fit: warned falsely in {sum(bool(row.get('warnings')) for row in good)} of {len(good)}",
        f"not as planned (killed in another save, or not at all): {sum(not row['as_planned'] for row in rows)} of {len(rows)}",
        f"error of the predicted peak: median {_median([100 * e for e in errors])} % of {len(errors)} predictions before a save; "
        f"median {_median([100 * e for e in at_warning])} % of {len(at_warning)} at the warning",
    ]
    return "\n".join(lines)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f}" if values else "-"


def _parted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Runs in which the kernel killed, or should have; and those in which all saves were made."""
    bad = [row for row in rows if row.get("killed", not row["fits"])]
    return bad, [row for row in rows if row not in bad]


def passed(rows: Sequence[Row]) -> bool:
    bad, good = _parted(rows)
    enough = sum(row["ok"] for row in bad) >= _WARNED * len(bad)
    return bool(rows) and enough and sum(bool(row.get("warnings")) for row in good) <= _FALSE * len(good)
