"""The results as one table, a row a case, and the rates that sum them up."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["markdown", "passed", "summary"]

_TOOLS = ("torchfrtrace raw", "torchfrtrace filled", "nvrx raw", "nvrx filled")
_SEVERAL = ("right", "among", "hint", "wrong", "nothing", "crashed")

_BAR = 0.95

Row = dict[str, Any]


def markdown(rows: Sequence[Row]) -> str:
    tools = [tool for tool in _TOOLS if any(tool in row.get("rivals", {}) for row in rows)]
    lines = [
        "| case | layouts | diag: culprit | class | delay s | dump s | " + " | ".join(tools) + " |",
        "| --- | --- | --- | --- | --- | --- | " + " | ".join("---" for _ in tools) + " |",
    ]
    for name in dict.fromkeys(row["case"] for row in rows if not row["benign"]):
        mine = sorted((row for row in rows if row["case"] == name), key=lambda row: row["seed"])
        cells = [
            name,
            ", ".join(row["layout"] for row in mine),
            _of(mine, "culprit_ok"),
            _of(mine, "class_ok"),
            _numbers(mine, "delay"),
            _numbers(mine, "dump_seconds"),
            *(_verdicts(mine, tool) for tool in tools),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| benign case | layouts | ended by itself, nothing said |", "| --- | --- | --- |"]
    for name in dict.fromkeys(row["case"] for row in rows if row["benign"]):
        mine = sorted((row for row in rows if row["case"] == name), key=lambda row: row["seed"])
        lines.append(f"| {name} | {', '.join(row['layout'] for row in mine)} | {_of(mine, 'ok')} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    faults, benign = [row for row in rows if not row["benign"]], [row for row in rows if row["benign"]]
    lines = [
        f"faults: {len({row['case'] for row in faults})} cases, {len(faults)} trials",
        f"top-1 culprit: {_rate(faults, 'culprit_ok')}",
        f"class: {_rate(faults, 'class_ok')}",
        f"both already when first said: {_rate(faults, 'first_ok')}",
        f"false hangs: {sum(bool(row.get('false_hang')) for row in rows)} of {len(rows)} trials, {len(benign)} of them benign",
        f"hangs called resolved while they lasted: {_rate([row for row in faults if 'resolved' in row], 'resolved')}",
        f"benign trials without a word and with exit code 0: {_rate(benign, 'ok')}",
        f"delay of a hang: {_spread(row['delay'] for row in faults if row.get('delay') is not None and 'hang' in row['wanted'])}",
        f"diag dump --all-ranks: {_spread(row['dump_seconds'] for row in faults if row.get('dump_seconds') is not None)}",
    ]
    for tool in _TOOLS:
        asked = [row["rivals"][tool]["verdict"] for row in faults if tool in row.get("rivals", {})]
        if asked:
            counts = ", ".join(f"{word} {asked.count(word)}" for word in _SEVERAL if asked.count(word))
            lines.append(f"{tool}, of {len(asked)} hangs: {counts}")
    hangs = [row for row in faults if row.get("rivals")]
    if hangs:
        lines.append(f"diag on the same {len(hangs)} hangs: {_rate(hangs, 'culprit_ok')} right")
    return "\n".join(lines)


def passed(rows: Sequence[Row]) -> bool:
    """The bar: 95 of 100 culprits and classes right, no false hang, not a word about what is benign."""
    faults, benign = [row for row in rows if not row["benign"]], [row for row in rows if row["benign"]]
    enough = all(
        sum(bool(row.get(key)) for row in faults) >= _BAR * len(faults) for key in ("culprit_ok", "class_ok")
    )
    return (
        bool(rows)
        and enough
        and all(row["ok"] for row in benign)
        and not any(row.get("false_hang") for row in rows)
    )


def _of(rows: Sequence[Row], key: str) -> str:
    return f"{sum(bool(row.get(key)) for row in rows)}/{len(rows)}"


def _rate(rows: Sequence[Row], key: str) -> str:
    good = sum(bool(row.get(key)) for row in rows)
    return f"{good}/{len(rows)} ({100 * good / len(rows):.1f} %)" if rows else "none run"


def _numbers(rows: Sequence[Row], key: str) -> str:
    return ", ".join(
        "–" if row.get(key) is None else f"{row[key]:.0f}" if key == "delay" else f"{row[key]:.1f}"
        for row in rows
    )


def _verdicts(rows: Sequence[Row], tool: str) -> str:
    said = [row["rivals"][tool]["verdict"] if tool in row.get("rivals", {}) else "–" for row in rows]
    return said[0] if len(set(said)) == 1 else ", ".join(said)


def _spread(values: Iterable[float]) -> str:
    found = sorted(values)
    return (
        f"median {statistics.median(found):.1f} s, most {found[-1]:.1f} s of {len(found)}"
        if found
        else "none"
    )
