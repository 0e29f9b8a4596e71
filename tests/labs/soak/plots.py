"""What was written down, as small SVG files. Needs matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from tests.labs.soak.day import Hour
from tests.labs.soak.sampling import Disk, Row

__all__ = ["draw_day", "draw_live"]

_POINTS = 120  # of a line: a drawing shows no more
_PARTS = 6
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "diag",
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 7,
    "lines.linewidth": 1.1,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def _thin(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Medians of neighbours."""
    each = max(1, len(points) // _POINTS)
    groups = [points[at : at + each] for at in range(0, len(points), each)]
    return (
        [round(statistics.median(x for x, _ in group), 2) for group in groups],
        [round(statistics.median(y for _, y in group), 4) for group in groups],
    )


def _line(axes: Axes, points: Sequence[tuple[float, float]], label: str, **how: Any) -> None:
    if points:
        axes.plot(*_thin(points), label=label, **how)


def _finish(path: Path, rows: Any, unit: str) -> None:
    for axes in rows.flat:
        axes.set_ylim(bottom=0)
        axes.set_xlabel(unit)
        axes.legend(frameon=False)
    rows.flat[0].figure.savefig(path, metadata={"Date": None}, facecolor="white", bbox_inches="tight")
    pyplot.close(rows.flat[0].figure)


def draw_live(path: Path, rows: Sequence[Row], disks: Sequence[Disk]) -> None:
    """Memory, open files and threads, CPU and disk over the minutes; sidecars together, as their median."""
    with mpl.rc_context(_STYLE):
        _, panels = pyplot.subplots(2, 2, figsize=(9, 5.4), layout="constrained")
        memory, counts, cpu, disk = panels.flat
        hub = [row for row in rows if row.process == "hub"]
        moments: dict[float, list[Row]] = {}
        for row in rows:
            if row.process.startswith("sidecar-"):
                moments.setdefault(row.at, []).append(row)

        def of(name: str, scale: float = 1.0) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
            return (
                [(row.at / 60, getattr(row, name) * scale) for row in hub],
                [
                    (at / 60, statistics.median(getattr(row, name) for row in told) * scale)
                    for at, told in moments.items()
                ],
            )

        for axes, name, label, scale in (
            (memory, "rss", "RSS", 1e-6),
            (memory, "private", "private", 1e-6),
            (counts, "fds", "open files", 1),
            (counts, "threads", "threads", 1),
        ):
            both = of(name, scale)
            dashed = {"linestyle": "--"} if name in ("private", "threads") else {}
            _line(axes, both[0], f"hub, {label}", color="C0", **dashed)
            _line(axes, both[1], f"a sidecar, {label}", color="C1", **dashed)
        memory.set_title("memory, MB")
        counts.set_title("open files and threads")
        for told, label, color in zip(of("cpu"), ("hub", "a sidecar"), ("C0", "C1"), strict=True):
            far = max(1, len(told) // 60)
            _line(
                cpu,
                [
                    (later[0], 100 * (later[1] - early[1]) / max(1e-9, 60 * (later[0] - early[0])))
                    for early, later in zip(told[::far], told[far::far], strict=False)
                ],
                label,
                color=color,
            )
        cpu.set_title("CPU, % of a core")
        for name, label in (
            ("journal", "journal"),
            ("output", "kept output"),
            ("nccl", "NCCL's files"),
            ("dumps", "dumps"),
        ):
            _line(disk, [(each.at / 60, getattr(each, name) / 1e6) for each in disks], label)
        disk.set_title("run directory, MB")
        _finish(path, panels, "minutes")


def draw_day(path: Path, rows: Sequence[Hour], told: Sequence[dict[str, Any]]) -> None:
    """Memory, what the largest parts of the state hold, CPU a minute and the journal over the told hours."""
    with mpl.rc_context(_STYLE):
        _, panels = pyplot.subplots(2, 2, figsize=(9, 5.4), layout="constrained")
        memory, parts, cpu, disk = panels.flat
        for name, label in (
            ("rss", "RSS of the process"),
            ("traced", "Python's own (tracemalloc)"),
            ("state", "state"),
        ):
            if any(getattr(row, name) for row in rows):
                _line(memory, [(row.hour, getattr(row, name) / 1e6) for row in rows], label)
        memory.set_title("memory, MB")
        last = told[-1]["parts"]
        for part in sorted(last, key=lambda name: -last[name]["bytes"])[:_PARTS]:
            _line(
                parts,
                [(hour["hour"], hour["parts"].get(part, {"bytes": 0})["bytes"] / 1e6) for hour in told],
                part,
            )
        parts.set_title("the largest parts of the state, MB")
        for name, label in (
            ("taking", "taking records in"),
            ("checking", "checks"),
            ("scraping", "a scrape and the state"),
        ):
            _line(cpu, [(row.hour, getattr(row, name)) for row in rows], label)
        cpu.set_title("CPU of a told minute, ms")
        _line(disk, [(row.hour, row.journal / 1e6) for row in rows], "journal")
        disk.set_title("journal, MB")
        _finish(path, panels, "told hours")
