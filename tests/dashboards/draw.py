"""Draws the dashboards' panels into docs/dashboards/*.png: our own plots of what a real Prometheus answers to
the same queries over recorded jobs. `make dashboards` runs it. No Grafana is needed, and none drew these.
"""

from __future__ import annotations

import math
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.dashboards.answers import Answers
from tests.dashboards.boards import BOARDS, Board
from tests.dashboards.panels import STATES, Panel

FOLDER = Path(__file__).parents[2] / "docs" / "dashboards"
# The job that each dashboard is drawn of, and how many seconds before its end.
SHOWN = {"diag-job": ("bundled-job", 2.0), "diag-rank": ("data-hang", 4.0), "diag-network": ("no-device-nodes", 2.0),
         "diag-memory": ("saves", 20.0), "diag-agent": ("bundled-job", 2.0)}  # fmt: skip
_COLUMNS, _ROW_INCHES, _WIDTH_INCHES, _DPI = 24, 0.34, 15.0, 64
_COLOURS = {"blue": "#3274d9", "green": "#56a64b", "purple": "#8f3bb8", "yellow": "#e0b400", "red": "#e02f44",
            "dark-red": "#8c0d1c", "text": "#777777"}  # fmt: skip
_UNITS = {"s": "s", "bytes": "B", "Bps": "B/s", "watt": "W", "celsius": "°C", "hertz": "Hz"}


def shown(value: float, unit: str) -> str:
    """As a person reads it.

    >>> shown(0.873, "percentunit"), shown(3 * 2**30, "bytes"), shown(41.0, "short")
    ('87.3 %', '3 GiB', '41')
    """
    if not math.isfinite(value):
        return "no limit" if value > 0 else "-"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("bytes", "Bps"):
        power = min(4, int(math.log(abs(value), 1024))) if abs(value) >= 1 else 0
        return f"{value / 1024**power:.3g} {'KMGT'[power - 1] + 'i' if power else ''}{_UNITS[unit]}"
    if unit == "hertz":
        return f"{value / 1e6:.0f} MHz"
    return f"{value:.4g} {_UNITS.get(unit, '')}".strip()


def draw(board: Board, answers: Answers) -> Path:
    places, height = _layout(board)
    figure = Figure(figsize=(_WIDTH_INCHES, height * _ROW_INCHES), dpi=_DPI, facecolor="white")
    for title, y in ((title, y) for title, y, _ in places if isinstance(title, str)):
        figure.text(0.005, 1 - (y + 0.75) / height, title, fontsize=13, weight="bold")
    for panel, y, x in places:
        if isinstance(panel, Panel):
            box = (x / _COLUMNS + 0.035, 1 - (y + panel.height - 1.3) / height, panel.width / _COLUMNS - 0.05,
                   (panel.height - 2.5) / height)  # fmt: skip
            _panel(figure.add_axes(box), panel, answers, *SHOWN[board.uid])
    path = FOLDER / f"{board.uid}.png"
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})
    _fewer_colours(path)
    return path


def _fewer_colours(path: Path) -> None:
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(160).save(path, optimize=True)


def _layout(board: Board) -> tuple[list[tuple[Any, int, int]], int]:
    """(row title or panel, top, left), as Grafana's grid has it."""
    places: list[tuple[Any, int, int]] = []
    top = 0
    for title, panels in board.rows:
        places.append((title, top, 0))
        top, x, highest = top + 1, 0, 0
        for panel in panels:
            if x + panel.width > _COLUMNS:
                top, x, highest = top + highest, 0, 0
            places.append((panel, top, x))
            x, highest = x + panel.width, max(highest, panel.height)
        top += highest
    return places, top


def _panel(axes: Axes, panel: Panel, answers: Answers, job: str, cut: float) -> None:
    axes.set_title(textwrap.shorten(panel.title, panel.width * 8), fontsize=10, loc="left")
    span = answers.span(job)
    found = [(row, legend) for query, legend in panel.queries for row in answers.ask(query, job, cut=cut)]
    for spine in axes.spines.values():
        spine.set_color("#cccccc")
    if not found:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color="#999999", transform=axes.transAxes)
    elif panel.kind == "stat":
        axes.set_axis_off()
        value = float(found[0][0]["values"][-1][1])
        axes.text(0.5, 0.4, shown(value, panel.unit), ha="center", va="center", fontsize=22, color=_colour(panel, value),
                  transform=axes.transAxes)  # fmt: skip
    elif panel.kind == "table":
        axes.set_xticks([])
        _table(axes, panel, [row for row, _ in found])
    elif panel.kind in ("states", "flags"):
        _bars(axes, panel, found, span.start)
    else:
        _lines(axes, panel, found, span.start)


def _legend(template: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    return template


def _lines(axes: Axes, panel: Panel, found: list[tuple[Any, str]], start: float) -> None:
    if panel.kind == "areas":
        _areas(axes, found, start)
    for row, legend in found[:12] if panel.kind == "lines" else ():
        name = _legend(legend, row["metric"])
        points = [(at - start, float(value)) for at, value in row["values"] if math.isfinite(float(value))]
        if points:
            axes.plot([at for at, _ in points], [value for _, value in points], label=name, linewidth=1.4)
    axes.margins(y=0.2)
    if panel.lowest is not None:
        axes.set_ylim(bottom=panel.lowest)
    axes.tick_params(labelsize=7)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, position: shown(value, panel.unit))
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:.0f} s")
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=7, loc="upper left", ncols=3, framealpha=0.6)


def _areas(axes: Axes, found: list[tuple[Any, str]], start: float) -> None:
    told = {row["metric"]["state"]: dict(row["values"]) for row, _ in found}
    moments = sorted({at for values in told.values() for at in values})
    shown_states = [
        (word, colour)
        for word, colour in STATES
        if any(float(value) for value in told.get(word, {}).values())
    ]
    heights = [[float(told[word].get(at, 0)) for at in moments] for word, _ in shown_states]
    axes.stackplot([at - start for at in moments], heights, labels=[word for word, _ in shown_states],
                   colors=[_COLOURS[colour] for _, colour in shown_states], alpha=0.7)  # fmt: skip


def _bars(axes: Axes, panel: Panel, found: list[tuple[Any, str]], start: float) -> None:
    words = dict(enumerate(STATES, 1)) if panel.kind == "states" else {1: ("open", "red")}
    used = {}
    for line, (row, _) in enumerate(found[:12]):
        axes.set_xlim(0, max(float(at) - start for at, _ in row["values"]) + 1)
        for at, value in row["values"]:
            if int(float(value)) in words:
                word, colour = words[int(float(value))]
                used[word] = axes.barh(line, 1.0, left=at - start, color=_COLOURS[colour], height=0.7)
    names = [_legend(legend, row["metric"]) for row, legend in found[:12]]
    axes.set_yticks(range(len(names)), names, fontsize=7, ha="left")
    axes.tick_params("y", pad=-4, length=0)
    axes.set_ylim(-0.6, len(found[:12]) - 0.4)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:.0f} s")
    if used:
        axes.legend(list(used.values()), list(used), fontsize=7, loc="upper left", ncols=7)


def _table(axes: Axes, panel: Panel, rows: list[Any]) -> None:
    axes.set_axis_off()
    hidden = {"job", "job_id", "instance", "__name__"}
    last = max(row["values"][-1][0] for row in rows)
    rows = [row for row in rows if row["values"][-1][0] == last]  # an instant query's answer
    names = [name for name in rows[-1]["metric"] if name not in hidden]
    cells = [
        [
            *(row["metric"].get(name, "")[: 2 * panel.width] for name in names),
            shown(float(row["values"][-1][1]), panel.unit),
        ]
        for row in rows
    ]
    made = axes.table(
        [*cells[-5:]], colLabels=[*names, "Value"], loc="upper left", cellLoc="left", edges="horizontal"
    )
    made.auto_set_font_size(False)
    made.set_fontsize(8)


def _colour(panel: Panel, value: float) -> str:
    if panel.bad is None:
        return "#333333"
    high = panel.warn is None or panel.warn <= panel.bad
    bad = value >= panel.bad if high else value < panel.bad
    middle = panel.warn is not None and (value >= panel.warn if high else value < panel.warn)
    return _COLOURS["red"] if bad else "#ff9830" if middle else _COLOURS["green"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Answers(Path(folder)) as answers:
        for board in BOARDS:
            path = draw(board, answers)
            print(path, f"{path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
