"""The time line as a line a series: a small drawing, its last and highest value, and what it may not exceed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from diag.cli.tui.line import Line, line, right
from diag.cli.tui.state import Series, State
from diag.cli.tui.words import say
from diag.text.columns import columns, cut
from diag.text.units import (
    format_bytes,
    format_number,
    format_quantity,
    format_rate,
    format_ratio,
    format_seconds,
)

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*#@"  # where the terminal's encoding has no blocks
_NAMES = {
    "step_seconds": "step time", "loss": "loss", "gpu_utilization_ratio": "busy", "gpu_memory_bytes": "memory",
    "gpu_power_watts": "power", "rank_rss_bytes": "RSS", "rank_cpu_ratio": "CPU", "memory_bytes": "memory (cgroup)",
    "host_memory_bytes": "memory (host)", "shm_bytes": "/dev/shm", "rdma_bytes_per_second": "RDMA",
    "socket_bytes_per_second": "sockets",
}  # fmt: skip
_FORMATS: dict[str, Callable[[float], str]] = {
    "ratio": format_ratio,
    "bytes": format_bytes,
    "bytes/s": format_rate,
    "seconds": format_seconds,
    "watts": partial(format_quantity, unit="W"),
}
# what counts most
_FIRST = ("step_seconds", "gpu_utilization_ratio", "gpu_memory_bytes", "memory_bytes", "host_memory_bytes")
_NEAR = 0.9  # of a limit, ours: it is then shown as a warning


def spark(values: Sequence[float | None], width: int, top: float | None = None, marks: str = BLOCKS) -> str:
    """A drawing of at most `width` characters from 0 to `top` (default: the highest value); a space is
    nothing read.

    >>> spark([0, 1, 2, None, 8], 5), spark([1.0] * 10 + [8.0] * 10, 2)
    ('▁▁▂ █', '▁█')
    """
    columns_ = min(width, len(values))
    if columns_ <= 0:
        return ""
    groups = [
        values[len(values) * at // columns_ : len(values) * (at + 1) // columns_] for at in range(columns_)
    ]
    highs = [max((value for value in group if value is not None), default=None) for group in groups]
    highest = top or max((high for high in highs if high is not None), default=0.0)
    return "".join(" " if high is None else _mark(high, highest, marks) for high in highs)


def _mark(value: float, highest: float, marks: str) -> str:
    if highest <= 0:
        return marks[0]
    part = max(0.0, min(1.0, value / highest))
    return marks[min(len(marks) - 1, int(part * len(marks) * 0.999))]


def timeline_lines(state: State, width: int, marks: str = BLOCKS, most: int | None = None) -> list[Line]:
    """All series, the most telling first; where `most` is given that many lines, and of GPUs and ranks one
    for all."""
    measured = state.timeline
    series = [one for one in measured.series if any(value is not None for value in one.values)]
    if most is not None:
        series = [
            _together([one for one in series if one.name == name])
            for name in dict.fromkeys(one.name for one in series)
        ]
    series.sort(key=lambda one: _FIRST.index(one.name) if one.name in _FIRST else len(_FIRST))
    if not series:
        return [line(say("  nothing was measured yet"), "dim")]
    lines = [line(cut(say(_span(state)), width), "dim")]
    room = max((columns(_named(one)) for one in series), default=0)
    for one in series[: most - 1 if most is not None else None]:
        lines.append(_series(one, measured.limits.get(one.name), min(room, width // 3), width, marks))
    return lines


def _together(members: Sequence[Series]) -> Series:
    """The highest where a limit counts, the mean elsewhere."""
    first, *others = members
    if not others:
        return first
    highest = first.unit == "bytes"
    moments = (
        [value for value in at if value is not None]
        for at in zip(*(one.values for one in members), strict=False)
    )
    values = tuple((max(at) if highest else sum(at) / len(at)) if at else None for at in moments)
    kind = "GPU" if first.name.startswith("gpu_") else "rank"
    return Series(
        first.name, first.unit, f"{'highest' if highest else 'mean'} of {len(members)} {kind}s", values
    )


def _named(one: Series) -> str:
    name = _NAMES.get(one.name, one.name)
    return f"{say(one.member)} {say(name)}" if one.member else say(name)


def _span(state: State) -> str:
    measured = state.timeline
    count = max((len(one.values) for one in measured.series), default=0)
    phases = " > ".join(dict.fromkeys(phase for phase, _ in measured.phases if phase))
    seconds = format_seconds(count * measured.width_seconds)
    return f"{seconds} from left to right, each drawn from 0 to its limit or highest; phases: {phases or '-'}"


def _series(one: Series, limit: float | None, room: int, width: int, marks: str) -> Line:
    values = [value for value in one.values if value is not None]
    top = 1.0 if one.unit == "ratio" and max(values) <= 1 else limit
    values_text = f"{_value(one, values[-1])}, most {_value(one, max(values))}" + (
        f" of {_value(one, limit)}" if limit else ""
    )
    name = cut(_named(one), room)
    drawn = max(10, width - room - 3 - max(34, columns(values_text)))
    near = limit is not None and max(values[-3:]) > _NEAR * limit
    picture = spark(one.values, drawn, top, marks)
    figures = cut("  " + say(values_text), max(3, width - room - 1 - drawn))
    return (
        (right(name, room) + " ", "bold"),
        (picture.ljust(drawn), "info"),
        (figures, "warning" if near else ""),
    )


def _value(one: Series, value: float) -> str:
    return _FORMATS.get(one.unit, format_number)(value)
