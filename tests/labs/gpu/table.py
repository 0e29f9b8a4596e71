"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["drills_table", "overhead_table"]

Row = dict[str, Any]
_HEAD = "| done to it | GPUs | diag says | ranks | delay s | dump s | right |"


def drills_table(rows: Sequence[Row]) -> str:
    lines = [_HEAD, "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in sorted(rows, key=lambda row: (len(row["gpus"]), row["drill"])):
        top = row.get("top") or row.get("first") or {}
        others = "; ".join(finding["id"] for finding in row.get("said", []))
        said = f"`{top['id']}` {top['class'] or top['cause']}" if top else others or "nothing"
        ranks = ", ".join(map(str, top.get("ranks", []))) if top else ""
        cells = [
            row["drill"],
            str(len(row["gpus"])),
            said if "error" not in row else "error",
            ranks,
            _number(row.get("delay")),
            _number(row.get("dump_seconds")),
            "yes" if row["ok"] else "no",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def overhead_table(found: Row) -> str:
    lines = ["| pair | steps | alone s | under diag s | ratio |", "| --- | --- | --- | --- | --- |"]
    for pair in found["pairs"]:
        cells = [f"GPUs {pair['gpus']}, round {pair['round']}", str(pair["steps"])]
        lines.append(
            "| " + " | ".join([*cells, *(f"{pair[key]:.4f}" for key in ("alone", "diag", "ratio"))]) + " |"
        )
    ratio = found["ratio"]
    lines.append(f"\nmedian of the ratios {ratio['mid']:.4f} [{ratio['low']:.4f}, {ratio['high']:.4f}]")
    for switched in found["switched"]:
        if "error" in switched:
            lines.append(
                f"diag on and off within one run, GPUs {switched['gpus']}: not measured, {switched['error']}"
            )
            continue
        lines.append(
            f"diag on and off within one run ({switched['pairs']} pairs of blocks, GPUs {switched['gpus']}): "
            f"{switched['mid']:.4f} [{switched['low']:.4f}, {switched['high']:.4f}]"
        )
    return "\n".join(lines)
