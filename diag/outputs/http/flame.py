"""Flame graphs of stacks that diag itself holds: as SVG, as a speedscope file, as collapsed lines. Pure.

Names come from strangers' code: all of them go through `clean`, and into XML through `_text`. The SVG has no
script and names nothing from elsewhere. What py-spy records live, py-spy itself writes.
"""

from __future__ import annotations

import html
import json
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import diag
from diag.engine.engine import Engine
from diag.model.observations import Frame, StackSample
from diag.state.stack_activity import child_role, format_frame
from diag.state.stack_digest import living_children
from diag.text.sanitize import clean
from diag.text.units import format_ranges, format_ratio, format_seconds

FORMATS: Mapping[str, str] = {
    "svg": "image/svg+xml; charset=utf-8",
    "speedscope": "application/json",
    "collapsed": "text/plain; charset=utf-8",
}
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

_LONGEST_GAP_SECONDS = 30.0  # between two samples: longer ones (diag was away) count for no stack
_LONE_SECONDS = 1.0  # of a sample that nothing followed
_LONGEST_NAME = 300
_LONGEST_RANKS = 48
_MAIN = "thread MainThread"

_WIDTH, _SIDE, _ROW, _TOP = 1200.0, 10.0, 17, 62  # pixels
_CHAR = 7.0  # of a 12 px monospace font
_NARROWEST = 0.3  # what is narrower cannot be seen
_WIDENED = 36.0  # of a merged graph: one rank of 16,384 must be seen
_MOST_BOXES = 20_000  # what a browser still opens


@dataclass(frozen=True, slots=True)
class Sampled:
    """One stack, outermost first, and what it weighs. `ranks` only where ranks are merged."""

    path: tuple[str, ...]
    weight: float
    ranks: tuple[int, ...] = ()
    frames: tuple[Frame | None, ...] = ()  # for speedscope's file and line, one for each step of the path


@dataclass(frozen=True, slots=True)
class Profile:
    """`unit` is seconds or ranks. Where it is ranks, each step is drawn with the ranks that are in it."""

    title: str
    subtitle: str
    unit: str
    samples: tuple[Sampled, ...]


# --- from what diag holds


def merged_profile(engine: Engine, *, children: bool = False) -> Profile:
    """Where all living ranks are now, from their last samples; with `children` those of their child processes
    too."""
    found: dict[tuple[str, ...], tuple[list[int], tuple[Frame | None, ...]]] = {}

    def add(rank: int, sample: StackSample, lead: tuple[str, ...]) -> None:
        main = sample.main
        if main is None or not main.frames:
            return
        path = (*lead, *(_name(format_frame(frame, engine.job.run.cwd)) for frame in main.frames))
        found.setdefault(path, ([], ((None,) * len(lead)) + main.frames))[0].append(rank)

    ranks = [rank for _, rank in sorted(engine.job.ranks.items()) if rank.alive]
    for rank in ranks:
        if rank.stack is not None:
            add(rank.rank, rank.stack, ())
        for _, child in living_children(rank) if children else ():
            add(rank.rank, child, (_name(child_role(child)),))
    samples = tuple(Sampled(path, len(who), tuple(who), frames) for path, (who, frames) in found.items())
    seen = sum(1 for rank in ranks if rank.stack is not None)
    about = f"{seen} of {max(engine.job.world_size, len(engine.job.ranks))} ranks, their last stacks; [n] are the ranks"
    return Profile("diag: where all ranks are", about, "ranks", samples)


class SeriesBuilder:
    """One rank's samples over time, as they were recorded: each stack weighs the seconds until the next look."""

    def __init__(self, rank: int, *, children: bool = False) -> None:
        self.rank = rank
        self.cwd = ""  # of the job, once its start was read
        self.seen = 0
        self._children = children
        self._last: dict[int, tuple[float, StackSample]] = {}
        self._gaps: dict[int, float] = {}
        self._found: list[Sampled] = []
        self._first = self._end = 0.0

    def add(self, at: float, sample: StackSample) -> None:
        """`at` is the time of the record, which never goes back."""
        if sample.rank != self.rank or (sample.parent_pid is not None and not self._children):
            return
        if not self.seen:
            self._first = at
        self.seen += 1
        self._end = at
        before = self._last.get(sample.pid)
        if before is not None:
            gap = self._gaps[sample.pid] = min(_LONGEST_GAP_SECONDS, max(0.0, at - before[0]))
            self._take(before[1], gap)
        self._last[sample.pid] = (at, sample)

    def profile(self) -> Profile:
        for pid, (_, sample) in self._last.items():
            self._take(sample, self._gaps.get(pid, _LONE_SECONDS))
        self._last.clear()
        about = f"{self.seen} samples over {format_seconds(self._end - self._first)}, as recorded; widths are seconds"
        return Profile(f"diag: rank {self.rank}", about, "seconds", tuple(self._found))

    def _take(self, sample: StackSample, seconds: float) -> None:
        lead: tuple[str, ...] = () if sample.parent_pid is None else (_name(child_role(sample)),)
        main = sample.main
        for thread in sample.threads:
            if thread.frames and seconds > 0:
                words = (
                    *lead,
                    _MAIN if thread is main else _name(f"thread {thread.name or thread.thread_id}"),
                    *(_name(format_frame(frame, self.cwd)) for frame in thread.frames),
                )
                frames = ((None,) * (len(lead) + 1)) + thread.frames
                self._found.append(Sampled(words, seconds, (), frames))


def _name(text: str) -> str:
    """One frame's name: printable, and without the sign that parts frames in collapsed lines."""
    return clean(text[:_LONGEST_NAME]).replace(";", ":").strip() or "?"


# --- the tree


@dataclass(slots=True)
class _Box:
    name: str
    weight: float = 0.0
    own: float = 0.0
    ranks: list[int] = field(default_factory=list)
    children: dict[str, _Box] = field(default_factory=dict)
    label: str = ""


def _tree(profile: Profile) -> _Box:
    root = _Box("all")
    for sample in profile.samples:
        box = root
        box.weight += sample.weight
        box.ranks.extend(sample.ranks)
        for step in sample.path:
            box = box.children.setdefault(step, _Box(step))
            box.weight += sample.weight
            box.ranks.extend(sample.ranks)
        box.own += sample.weight
    work = [root]
    while work:
        box = work.pop()
        box.label = box.name + (f" [{format_ranges(box.ranks, longest=_LONGEST_RANKS)}]" if box.ranks else "")
        work.extend(box.children.values())
    return root


def write(profile: Profile, form: str) -> str:
    return {"svg": svg, "speedscope": speedscope, "collapsed": collapsed}[form](profile)


def collapsed(profile: Profile) -> str:
    """`outer;inner weight` lines, as flamegraph.pl and speedscope read them; weights are milliseconds, or
    ranks."""
    scale = 1000.0 if profile.unit == "seconds" else 1.0
    lines: list[str] = []
    work: list[tuple[_Box, str]] = [(_tree(profile), "")]
    while work:
        box, path = work.pop()
        if path and box.own > 0:
            lines.append(f"{path} {max(1, round(box.own * scale))}\n")
        for child in box.children.values():
            work.append((child, f"{path};{child.label}" if path else child.label))
    return "".join(sorted(lines))


def speedscope(profile: Profile) -> str:
    """A file for https://www.speedscope.app (or its offline copy), by the published schema; stacks in order
    of time."""
    frames: dict[tuple[str, str, int], int] = {}
    labels = _tree(profile) if profile.unit == "ranks" else None
    by_thread: dict[str, tuple[list[list[int]], list[float]]] = {}
    for sample in profile.samples:
        stack: list[int] = []
        box = labels
        for step, frame in zip(sample.path, sample.frames or (None,) * len(sample.path), strict=True):
            box = box.children[step] if box is not None else None
            key = (
                box.label if box is not None else step,
                clean(frame.file) if frame else "",
                frame.line if frame else 0,
            )
            stack.append(frames.setdefault(key, len(frames)))
        whose = "all ranks" if labels is not None else " / ".join(sample.path[: sample.frames.count(None)])
        samples, weights = by_thread.setdefault(whose, ([], []))
        samples.append(stack)
        weights.append(round(sample.weight, 6))
    document = {
        "$schema": _SCHEMA,
        "name": profile.title,
        "exporter": f"diag {diag.__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(*key) for key in frames]},
        "profiles": [
            {"type": "sampled", "name": whose, "unit": "none" if labels is not None else "seconds", "startValue": 0,
             "endValue": round(sum(weights), 6), "samples": samples, "weights": weights}
            for whose, (samples, weights) in sorted(by_thread.items(), key=lambda item: (item[0] != _MAIN, item[0]))
        ],
    }  # fmt: skip
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"))


def _frame(name: str, file: str, line: int) -> dict[str, object]:
    return {"name": name, **({"file": file} if file else {}), **({"line": line} if line > 0 else {})}


# --- SVG


def svg(profile: Profile) -> str:
    """Outermost on top, as py-spy draws it; the name, weight and share of a box are in its tooltip."""
    root = _tree(profile)
    boxes: list[str] = []
    deepest = 0
    merged = profile.unit == "ranks"
    work = deque([(root, _SIDE, _WIDTH - 2 * _SIDE, 0)])
    left_out = 0
    while work:
        box, x, width, depth = work.popleft()  # by rows: where there are too many, the innermost are left out
        if width < _NARROWEST or len(boxes) >= _MOST_BOXES:
            left_out += 1
            continue
        deepest = max(deepest, depth)
        boxes.append(_drawn(box, root, x, width, depth, merged))
        for child, child_width in _shares(box, width, merged):
            work.append((child, x, child_width, depth + 1))
            x += child_width
    height = _TOP + _ROW * (deepest + 1) + 12
    subtitle = profile.subtitle
    if merged:
        subtitle += "; narrow branches are widened to be seen, few ranks are red"
    if left_out:
        subtitle += f"; {left_out} boxes too narrow to be seen are left out"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" viewBox="0 0 {_WIDTH:.0f} {height}" '
        f'width="{_WIDTH:.0f}" height="{height}" role="img">\n'
        f"<title>{_text(profile.title)}</title>\n"
        "<style>text{font:12px monospace;fill:#111}rect{stroke:#fff;stroke-width:.5}g:hover rect{stroke:#000}</style>\n"
        f'<rect x="0" y="0" width="{_WIDTH:.0f}" height="{height}" fill="#fbfaf4"/>\n'
        f'<text x="{_SIDE}" y="22" style="font-size:16px">{_text(profile.title)}</text>\n'
        f'<text x="{_SIDE}" y="42">{_text(subtitle)}</text>\n' + "".join(boxes) + "</svg>\n"
    )


def _shares(box: _Box, width: float, merged: bool) -> Iterable[tuple[_Box, float]]:
    """How wide the boxes below are. Of a merged graph the least get what can be seen, at the cost of the
    many."""
    children = sorted(
        box.children.values(), key=lambda child: (child.name != _MAIN, child.weight, child.name)
    )
    least = min(_WIDENED, width / (2 * len(children))) if merged and len(children) > 1 else 0.0
    room = width * (
        sum(child.weight for child in children) / box.weight if box.weight else 0.0
    ) - least * len(children)
    total = sum(child.weight for child in children)
    return [(child, least + max(0.0, room) * child.weight / total) for child in children if total > 0]


def _drawn(  # noqa: PLR0917 - one caller, beside it
    box: _Box, root: _Box, x: float, width: float, depth: int, merged: bool
) -> str:
    share = box.weight / root.weight if root.weight else 0.0
    amount = _amount(len(set(box.ranks)), round(box.weight)) if merged else format_seconds(box.weight)
    y = _TOP + _ROW * depth
    fits = int((width - 6) / _CHAR)
    label = box.label if len(box.label) <= fits else box.label[: max(0, fits - 2)] + ".."
    words = f'<text x="{x + 3:.1f}" y="{y + 12}">{_text(label)}</text>' if fits >= 3 else ""
    return (
        f"<g><title>{_text(box.label)}: {amount}, {_text(format_ratio(share))}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" fill="{_colour(box, share, merged)}"/>{words}</g>\n'
    )


def _amount(ranks: int, processes: int) -> str:
    about = f"{ranks} rank{'' if ranks == 1 else 's'}"
    return about if processes == ranks else f"{about}, {processes} processes"


def _colour(box: _Box, share: float, merged: bool) -> str:
    """Equal names have equal colours; of a merged graph the rare are red (their ranks are printed there)."""
    if merged:
        return "#e8604c" if share <= 0.1 else "#f2b679" if share <= 0.4 else "#e3dfb4"
    number = zlib.crc32(box.name.encode("utf-8", "replace"))
    return f"rgb({205 + number % 50},{90 + (number >> 8) % 130},{(number >> 16) % 60})"


def _text(text: str) -> str:
    """For XML: no control characters nor lone surrogates, and the signs of XML escaped."""
    return html.escape(clean(text), quote=True)
