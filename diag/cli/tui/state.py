"""What a hub reports of a run (`diag.state/1`), as the screen needs it. Whatever comes in is taken as it is
meant or refused here: past this module every text is clean, every number a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from diag.model import Severity
from diag.model.observations import Frame
from diag.outputs.view.classes import StackClass
from diag.text.sanitize import clean

_SEVERITIES = frozenset(severity.value for severity in Severity)
_MOST_EVIDENCE = 64
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int | None
    name: str
    utilization_ratio: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_watts: float | None
    temperature_celsius: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One rank; None is what could not be read."""

    rank: int
    node_rank: int | None
    local_rank: int | None
    host: str
    pid: int | None
    state: str
    activity: str
    context: str
    where: str
    caller: str
    progress_at: float | None
    stack_since: float | None
    process_state: str
    cpu_ratio: float | None  # 1 is one core
    rss_bytes: float | None
    peak_rss_bytes: float | None
    threads: int | None
    open_files: int | None
    children: int | None
    gpu: Gpu | None
    exit: str
    no_stack: str
    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    unit: str
    member: str  # "GPU 3", "rank 2"; empty where there is one for all
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    began: float | None
    width_seconds: float
    phases: tuple[tuple[str, float], ...]
    series: tuple[Series, ...]
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReportedClass(StackClass):
    """A class of merged stacks as the hub reported it: its title was made where the frames were read."""

    reported: str = ""

    def title(self) -> str:
        return self.reported


class State:
    """Parts as they were last reported. `raw` is the document, for --json."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {"schema": "diag.state/1", "ranks": []}
        self.now = 0.0
        self.head: dict[str, str] = {}
        self.started_at: float | None = None
        self.report: dict[str, Any] = _report({})
        self.rows: dict[int, Row] = {}
        self.stacks: tuple[StackClass, ...] = ()
        self.timeline = Timeline(None, 1.0, (), (), {})
        self.nodes: tuple[Mapping[str, Any], ...] = ()

    def take_document(self, document: object) -> None:
        """All of /state. Raises ValueError for what is none."""
        if not isinstance(document, dict) or document.get("schema") != "diag.state/1":
            raise ValueError("no diag.state/1")
        for part, value in document.items():
            if part == "ranks":
                self.take("ranks", {"whole": True, "rows": value})
            else:
                self.take(part, value)

    def take(self, part: str, value: object) -> None:
        """One part, as /events sends it; others of a newer hub are passed over. Raises ValueError for what
        cannot be meant; then all is as it was."""
        try:
            self._take(part, value)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{part}: {type(error).__name__}: {error}") from None

    def _take(self, part: str, value: Any) -> None:
        if part == "ranks":
            if not isinstance(value["rows"], list):
                raise ValueError("ranks: no list")
            rows = {row.rank: row for row in map(_row, value["rows"])}
            raw = {row["rank"]: row for row in value["rows"]}
            if not value.get("whole"):
                rows = {**self.rows, **rows}
                raw = {**{row["rank"]: row for row in self.raw["ranks"]}, **raw}
            self.rows = dict(sorted(rows.items()))
            self.raw["ranks"] = [raw[rank] for rank in self.rows]
            return
        if part == "now":
            self.now = _number(value["at"]) or self.now
        elif part == "head":
            self.head = {
                name: _text(value.get(name)) for name in ("run_id", "version", "recorded", "command", "host")
            }
            self.started_at = _number(value.get("started_at"))
        elif part == "report":
            self.report = _report(value)
        elif part == "stacks":
            self.stacks = tuple(map(_stack_class, value))
        elif part == "timeline":
            self.timeline = _timeline(value)
        elif part == "nodes":
            self.nodes = tuple(node for node in value if isinstance(node, Mapping))
        else:
            return
        self.raw[part] = value

    # -- what is asked of it often ------------------------------------------------------------------------

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Those that are open, gravest first."""
        found: list[dict[str, Any]] = self.report["findings"]
        return found

    @property
    def past(self) -> list[dict[str, Any]]:
        """Those that are over, the latest first."""
        found: list[dict[str, Any]] = self.report["past"]
        return found

    @property
    def word(self) -> str:
        """Of the job: running, hung, ..."""
        return str(self.report["job"]["state"])

    @property
    def elapsed(self) -> float | None:
        return max(0.0, self.now - self.started_at) if self.started_at and self.now else None

    def culprits(self) -> frozenset[int]:
        return frozenset(
            rank for one in self.findings if Severity(one["severity"]).counts for rank in one["ranks"]
        )

    def url_of(self, rank: int) -> str:
        """Of the hub of that rank's node, where it is another than the one asked; it has that rank's stacks."""
        for node in self.nodes:
            if rank in (node.get("ranks") or ()) and node.get("host") != self.head.get("host"):
                return _text(node.get("url"))
        return ""


# --- what is meant


def _text(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _int(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _ranks(value: object) -> list[int]:
    return [rank for rank in map(_int, value) if rank is not None] if isinstance(value, list) else []


def _dicts(value: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


# By the type of a field.
_READ: dict[str, Callable[[object], Any]] = {"str": _text, "int | None": _int, "float | None": _number}


@cache
def _readers(kind: Any) -> list[tuple[str, Callable[[object], Any]]]:
    return [(each.name, _READ[str(each.type)]) for each in fields(kind) if each.type in _READ]


def _read(kind: type[_T], value: Mapping[str, Any], **given: object) -> _T:
    """A dataclass of what `value` has under the names of its fields, but for those that are given."""
    read = {name: reader(value.get(name)) for name, reader in _readers(kind) if name not in given}  # type: ignore[arg-type]
    return kind(**read, **given)


def _row(value: Mapping[str, Any]) -> Row:
    rank = _int(value["rank"])
    if rank is None or rank != value["rank"]:
        raise ValueError("a row without a rank")
    where, caller, own, end = (
        _text((value.get(name) or {}).get("text")) for name in ("where", "caller", "own", "exit")
    )
    shares = [each for each in (value.get("time_shares") or {}).items() if each[0] != "samples"]
    known = tuple((_text(name), part) for name, part in shares if _number(part) is not None)
    gpu = _read(Gpu, value["gpu"]) if isinstance(value.get("gpu"), Mapping) else None
    return _read(Row, value, rank=rank, where=where, caller=own or caller, exit=end, shares=known, gpu=gpu)


def _report(value: Mapping[str, Any]) -> dict[str, Any]:
    job = value.get("job") or {}
    steps = job.get("steps") or {}
    findings = [_finding(one) for one in _dicts(value.get("findings")) if one.get("resolved_at") is None]
    return {
        "sentence": _text(value.get("sentence")),
        "job": {
            "state": _text(job.get("state")) or "unknown", "phase": _text(job.get("phase")),
            "iteration": _int(job.get("iteration")), "total_iterations": _int(job.get("total_iterations")),
            "world_size": _int(job.get("world_size")), "ranks_seen": _int(job.get("ranks_seen")),
            "returncode": _int(job.get("returncode")), "ended_at": _number(job.get("ended_at")),
            "step_seconds": _number(steps.get("seconds_now")),
        },
        "findings": sorted(findings, key=lambda one: -Severity(one["severity"]).level),
        "past": [_finding(one) for one in _dicts(value.get("past"))], "past_left_out": _int(value.get("past_left_out")) or 0,
        "not_checked": [
            {name: _text(one.get(name)) for name in ("what", "reason", "remedy")} for one in _dicts(value.get("not_checked"))
        ],
        "next_command": _text(value.get("next_command")), "next_reason": _text(value.get("next_reason")),
    }  # fmt: skip


def _finding(value: Mapping[str, Any]) -> dict[str, Any]:
    """In the shape that `outputs.terminal.text` prints."""
    severity = value.get("severity")
    texts = ("id", "subject", "class", "confidence", "summary", "cause", "advice")
    evidence = [
        {"rank": _int(one.get("rank")), "kind": _text(one.get("kind")), "where": _text(one.get("where")),
         "excerpt": one["excerpt"] if isinstance(one.get("excerpt"), str) else ""}
        for one in _dicts(value.get("evidence"))
    ]  # fmt: skip
    return {
        **{name: _text(value.get(name)) for name in texts},
        **{name: _ranks(value.get(name)) for name in ("ranks", "waiting_ranks")},
        **{name: _number(value.get(name)) for name in ("opened_at", "resolved_at")},
        "severity": severity if severity in _SEVERITIES else "info",
        "since": _number(value.get("since")) or 0.0,
        "open_at_end": value.get("open_at_end") is True,
        "evidence": evidence[:_MOST_EVIDENCE],
    }


def _stack_class(value: Mapping[str, Any]) -> StackClass:
    path = tuple(map(_text, value.get("path") or ()))
    return _read(
        ReportedClass,
        value,
        ranks=tuple(_ranks(value.get("ranks"))),
        pids=tuple(_ranks(value.get("pids"))),
        frames=tuple(frame_of_text(text) for text in value.get("frames") or () if isinstance(text, str)),
        at=0.0,
        path=path,
        moving=tuple(_ranks(value.get("moving_ranks"))),
        standing_steps=min(_int(value.get("standing_steps")) or 0, len(path)),
        reported=_text(value.get("title")),
    )


def frame_of_text(text: str) -> Frame:
    """Of a text as `format_frame` makes it, so that it makes the same again: the path was shortened already.

    >>> from diag.outputs.view.classes import format_frame
    >>> format_frame(frame_of_text("Layer.forward (a/b/c/d/e/layer.py:359)"))
    'Layer.forward (a/b/c/d/e/layer.py:359)'
    """
    function, _, place = clean(text).rpartition(" (")
    file, _, number = place.removesuffix(")").rpartition(":")
    if not function or not (number.isascii() and number.isdigit()):
        return Frame(clean(text), "?", 0)
    return Frame(function, file, int(number))


def _timeline(value: Mapping[str, Any]) -> Timeline:
    series = []
    for one in _dicts(value.get("series")):
        gpu, rank = _int(one.get("gpu")), _int(one.get("rank"))
        member = f"GPU {gpu}" if gpu is not None else f"rank {rank}" if rank is not None else ""
        many = _int(one.get("members")) or 1
        values = one.get("values")
        series.append(Series(
            _text(one.get("name")), _text(one.get("unit")), f"mean of {many}" if many > 1 else member,
            tuple(map(_number, values)) if isinstance(values, list) else (),
        ))  # fmt: skip
    limits = value.get("limits") or {}
    return Timeline(
        _number(value.get("began")), _number(value.get("width_seconds")) or 1.0,
        tuple((_text(one.get("phase")), _number(one.get("at")) or 0.0) for one in _dicts(value.get("phases"))),
        tuple(series), {_text(name): limit for name, limit in limits.items() if _number(limit)},
    )  # fmt: skip
