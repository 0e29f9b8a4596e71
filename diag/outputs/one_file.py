"""The page as one file that a person sends: its scripts and styles, and all that it shows, in one HTML document. It opens
from disk, without diag, and its policy lets it ask nobody anything.

Reads a view, and judges nothing. What does not fit is left out, and the page says what that was.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from diag.outputs import manual
from diag.outputs.chinese import in_chinese
from diag.outputs.http.chinese import chinese_of
from diag.outputs.notify.message import hidden
from diag.outputs.view import parts
from diag.outputs.view.view import HubView, json_bytes, stacks_json
from diag.text.units import format_ranks

MOST_BYTES = 1_990_000  # mail and issue trackers take 2 MB
# Of the room for data, at most. What is left, and what they do not need, is for manual pages and for each rank.
_SHARES = {"report": 0.3, "stacks": 0.15, "ranks": 0.2, "timeline": 0.15, "nodes": 0.05}
_SMALLER = (1.0, 0.5, 0.25)
_SECONDS = 5.0  # ours, of a job of thousands of ranks: the hub has other work
_EXCERPT = 1500  # characters of one piece of evidence, where the report is too large
_IMPORT = re.compile(r"""((?:from|import)\s*)"(\./[\w./-]+)\"""")


def page_file(view: HubView, recorded: str, most_bytes: int = MOST_BYTES) -> bytes:
    """HTML of what the view has now. `recorded`: where this is from. Takes the view's lock, several times and each time
    for a short while."""
    with view.lock:
        own = parts.own_parts(view)
    own["head"]["recorded"] = own["head"]["recorded"] or recorded
    shown = hidden(parts.with_others(own, view))
    frame = _Frame()
    title = f"{shown['report']['job']['state']} - {shown['head']['run_id']} - diag"
    for share in _SMALLER:
        data = _Data(int((most_bytes - frame.size) * share))
        _take_parts(data, shown)
        _take_manuals(data, shown["report"])
        _take_ranks(data, view, shown)
        document = frame.around(title, data.to_json())
        if len(document) <= most_bytes:  # what cannot be cut (an open finding) may be larger than its share
            break
    return document


# --- what it holds


@dataclass(slots=True)
class _Data:
    """What fits. Sizes are of JSON as it stands in the document."""

    room: int
    parts: dict[str, Any] = field(default_factory=dict)
    chinese: dict[str, dict[str, str]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.room - 4096  # for `cut`

    def take_part(self, name: str, value: Any) -> None:
        shown = {"whole": True, "rows": value} if name == "ranks" else value
        words = chinese_of({name: shown})
        self._left -= _size(shown) + _size(words)
        self.parts[name] = shown
        self.chinese.update(words)

    def take_answer(self, path: str, value: Any) -> bool:
        """False where there is no room for it."""
        size = _size(value) + len(path) + 8
        if size > self._left:
            return False
        self._left -= size
        self.answers[path] = value
        return True

    def to_json(self) -> str:
        said = {"cut": {line: in_chinese(line) for line in self.cut}} if self.cut else {}
        return _json({
            "schema": "diag.saved/1", "made_at": time.time(), "parts": self.parts, "answers": self.answers,
            "cut": self.cut, "chinese": {**self.chinese, **said},
        })  # fmt: skip


def _take_parts(data: _Data, shown: Mapping[str, Any]) -> None:
    for name, value in shown.items():
        most = int(data.room * _SHARES.get(name, 1.0))
        fits = name not in _CUTS or _size(value) <= most
        data.take_part(name, value if fits else _CUTS[name](value, most, data.cut, shown))


def _cut_report(
    report: dict[str, Any], most: int, cut: list[str], shown: Mapping[str, Any]
) -> dict[str, Any]:
    """Without the ends of long pieces of evidence; then without findings that are over, the oldest first."""

    def short(finding: dict[str, Any]) -> dict[str, Any]:
        return {
            **finding,
            "evidence": [{**one, "excerpt": one["excerpt"][:_EXCERPT]} for one in finding["evidence"]],
        }

    cut.append("the ends of long pieces of evidence")
    findings = list(map(short, report["findings"]))
    past, before = list(map(short, report["past"])), len(report["past"])
    while past and _size(findings) + _size(past) > most:
        past = past[: len(past) // 2]
    if len(past) < before:
        cut.append(f"{before - len(past)} findings that are over")
    left_out = report.get("past_left_out", 0) + before - len(past)
    return {**report, "findings": findings, "past": past, **({"past_left_out": left_out} if left_out else {})}


def _cut_list(what: str) -> Callable[[list[Any], int, list[str], Mapping[str, Any]], list[Any]]:
    def take(rows: list[Any], most: int, cut: list[str], shown: Mapping[str, Any]) -> list[Any]:
        kept, held = [], 0
        for row in rows:
            held += _size(row) + 2
            if held > most:
                break
            kept.append(row)
        cut.append(f"{len(rows) - len(kept)} {what}")
        return kept

    return take


def _cut_ranks(rows: list[Any], most: int, cut: list[str], shown: Mapping[str, Any]) -> list[Any]:
    """Those that findings name come first."""
    by_rank = {row["rank"]: row for row in rows}
    kept, held = {}, 0
    for rank in _in_order(by_rank, shown["report"]):
        held += _size(by_rank[rank]) + 2
        if held > most:
            break
        kept[rank] = by_rank[rank]
    cut.append(f"what is known of {_format_ranks(by_rank.keys() - kept.keys())}")
    return [row for row in rows if row["rank"] in kept]


def _cut_timeline(
    timeline: dict[str, Any], most: int, cut: list[str], shown: Mapping[str, Any]
) -> dict[str, Any]:
    series = _cut_list("series of the time line")(timeline["series"], most, cut, shown)
    return {**timeline, "series": series}


_CUTS: dict[str, Callable[[Any, int, list[str], Mapping[str, Any]], Any]] = {
    "report": _cut_report,
    "stacks": _cut_list("classes of stacks"),
    "ranks": _cut_ranks,
    "timeline": _cut_timeline,
    "nodes": _cut_list("nodes"),
}


def _take_manuals(data: _Data, report: Mapping[str, Any]) -> None:
    for finding in dict.fromkeys(one["id"] for one in (*report["findings"], *report["past"])):
        for lang in ("en", "zh"):
            sections = manual.sections(finding, lang)
            if sections:
                answer = {"id": finding, "lang": lang, "sections": sections}
                data.take_answer(f"explain/{finding}?lang={lang}", answer)


def _take_ranks(data: _Data, view: HubView, shown: Mapping[str, Any]) -> None:
    """Stacks of each rank of this node, then their time lines, those that findings name first."""
    engine, until = view.engine, time.monotonic() + _SECONDS
    with view.lock:
        here = list(engine.job.ranks)

    def stacks(rank: int) -> bool:
        with view.lock:
            answer = stacks_json(engine, rank)
        return data.take_answer(f"ranks/{rank}/stacks", hidden(answer))

    def drawn(rank: int) -> bool:
        with view.lock:
            answer = engine.timeline.of_rank(rank, engine.job)
        return data.take_answer(f"timeline?rank={rank}", answer)

    for what, take in (("stacks", stacks), ("time lines", drawn)):
        left = list(_in_order(here, shown["report"]))
        while left and time.monotonic() < until and take(left[0]):
            del left[0]
        if left:
            data.cut.append(f"{what} of {_format_ranks(left)}")


def _in_order(ranks: Iterable[int], report: Mapping[str, Any]) -> Iterator[int]:
    """Culprits, then those that wait for them, then the others."""
    there = set(ranks)
    findings = (*report["findings"], *report["past"])
    named = [rank for which in ("ranks", "waiting_ranks") for one in findings for rank in one[which]]
    for rank in dict.fromkeys((*named, *sorted(there))):
        if rank in there:
            yield rank


def _format_ranks(ranks: Iterable[int]) -> str:
    return format_ranks(sorted(ranks))


# --- the document


class _Frame:
    """The page's own files, in the document. Modules have names instead of paths there: a `data:` address has nothing
    that a path could be relative to."""

    def __init__(self) -> None:
        folder = resources.files("diag.outputs").joinpath("web")
        modules, styles = {}, []
        for prefix, place in (("vendor/", folder.joinpath("vendor")), ("", folder)):
            for each in sorted(place.iterdir(), key=lambda one: one.name):
                if each.name.endswith(".js"):
                    text = _with_names(each.read_text(encoding="utf-8"), prefix)
                    modules[f"diag/{prefix}{each.name}"] = _address(text)
                elif each.name.endswith(".css"):
                    styles.append(each.read_text(encoding="utf-8"))
        self._style = "\n".join(styles)
        self._map = json.dumps({"imports": modules}, separators=(",", ":"))
        self._start = 'import "diag/app.js";'
        self.size = len(self.around("x" * 200, "").decode())

    def around(self, title: str, data: str) -> bytes:
        scripts = " ".join(map(_hash, (self._map, self._start)))
        policy = (
            f"default-src 'none'; script-src {scripts} data:; style-src {_hash(self._style)}; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        )
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(title[:200])}</title>
<link rel="icon" href="data:,">
<style>{self._style}</style>
<script type="importmap">{self._map}</script>
</head>
<body><div id="app"></div>
<noscript><p>This report needs its script (本报告需要脚本).</p></noscript>
<script type="application/json" id="diag-saved">{data}</script>
<script type="module">{self._start}</script>
</body>
</html>
""".encode()


def _with_names(text: str, prefix: str) -> str:
    """
    >>> _with_names('import { h } from "./preact.js";', "vendor/")
    'import { h } from "diag/vendor/preact.js";'
    """
    return _IMPORT.sub(lambda found: f'{found[1]}"diag/{prefix}{found[2][2:]}"', text)


def _address(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def _json(value: Any) -> str:
    r"""As it may stand between tags: nothing in it ends the element or begins another.

    >>> _json({"line": "</script><!--"})
    '{"line":"\\u003c/script\\u003e\\u003c!--"}'
    """
    return re.sub("[<>&]", lambda found: _UNSAFE[found[0]], json_bytes(value).decode())


def _size(value: Any) -> int:
    return len(_json(value).encode())
