"""What a hub says of a run (`diag.state/1`), as the screen needs it. Whatever comes in is taken as it is
meant or refused here: past this module every word is clean, every number a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diag.cli.tui.stack_class_json import ReportedClass, frame_of_text
from diag.model import Severity
from diag.outputs.view.classes import StackClass
from diag.text.sanitize import clean

_SEVERITIES = frozenset(severity.value for severity in Severity)
_MOST_EVIDENCE = 64


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int | None
    name: str
    utilization: float | None  # 0 to 1
    used_bytes: float | None
    total_bytes: float | None
    watts: float | None
    celsius: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One rank; None is what nobody could read."""

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
    cpu: float | None  # 1 is one core
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


class State:
    """Parts as they were last said. `raw` is the document, for --json."""

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
        """One part, as /events tells it; others of a newer hub are passed over. Raises ValueError for what
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
            told = {row["rank"]: row for row in value["rows"]}
            if not value.get("whole"):
                rows, told = (
                    {**self.rows, **rows},
                    {**{row["rank"]: row for row in self.raw["ranks"]}, **told},
                )
            self.rows = dict(sorted(rows.items()))
            self.raw["ranks"] = [told[rank] for rank in self.rows]
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
        """Of the hub of that rank's node, where another than the one asked; it has that rank's stacks."""
        for node in self.nodes:
            if rank in (node.get("ranks") or ()) and node.get("host") != self.head.get("host"):
                return _text(node.get("url"))
        return ""


# --- what is meant
# -------------------------------------------------------------------------------------------


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


def _row(value: Mapping[str, Any]) -> Row:
    rank = _int(value["rank"])
    if rank is None or rank != value["rank"]:
        raise ValueError("a row without a rank")
    where, caller, end = (value.get(name) or {} for name in ("where", "caller", "exit"))
    shares = value.get("time_shares") or {}
    gpu = value.get("gpu")
    return Row(
        rank=rank, node_rank=_int(value.get("node_rank")), local_rank=_int(value.get("local_rank")),
        host=_text(value.get("host")), pid=_int(value.get("pid")), state=_text(value.get("state")),
        activity=_text(value.get("activity")), context=_text(value.get("context")),
        where=_text(where.get("text")), caller=_text(caller.get("text")),
        progress_at=_number(value.get("progress_at")), stack_since=_number(value.get("stack_since")),
        process_state=_text(value.get("process_state")), cpu=_number(value.get("cpu_ratio")),
        rss_bytes=_number(value.get("rss_bytes")), peak_rss_bytes=_number(value.get("peak_rss_bytes")),
        threads=_int(value.get("threads")), open_files=_int(value.get("open_files")), children=_int(value.get("children")),
        gpu=_gpu(gpu) if isinstance(gpu, Mapping) else None, exit=_text(end.get("text")), no_stack=_text(value.get("no_stack")),
        shares=tuple((_text(name), part) for name, part in shares.items() if name != "samples" and _number(part) is not None),
    )  # fmt: skip


def _gpu(value: Mapping[str, Any]) -> Gpu:
    names = (
        "utilization_ratio",
        "memory_used_bytes",
        "memory_total_bytes",
        "power_watts",
        "temperature_celsius",
    )
    return Gpu(
        _int(value.get("index")), _text(value.get("name")), *(_number(value.get(name)) for name in names)
    )


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
    """In the shape that `outputs.text` prints."""
    severity = value.get("severity")
    told = {
        name: _text(value.get(name))
        for name in ("id", "subject", "class", "confidence", "summary", "cause", "advice")
    }
    evidence = [
        {"rank": _int(one.get("rank")), "kind": _text(one.get("kind")), "where": _text(one.get("where")),
         "excerpt": one["excerpt"] if isinstance(one.get("excerpt"), str) else ""}
        for one in _dicts(value.get("evidence"))
    ]  # fmt: skip
    return {
        **told, "severity": severity if severity in _SEVERITIES else "info",
        "ranks": _ranks(value.get("ranks")), "waiting_ranks": _ranks(value.get("waiting_ranks")),
        "since": _number(value.get("since")) or 0.0, "opened_at": _number(value.get("opened_at")),
        "resolved_at": _number(value.get("resolved_at")), "open_at_end": value.get("open_at_end") is True,
        "evidence": evidence[:_MOST_EVIDENCE],
    }  # fmt: skip


def _stack_class(value: Mapping[str, Any]) -> StackClass:
    frames = tuple(frame_of_text(text) for text in value.get("frames") or () if isinstance(text, str))
    return ReportedClass(
        kind=_text(value.get("kind")), ranks=tuple(_ranks(value.get("ranks"))), pids=tuple(_ranks(value.get("pids"))),
        activity=_text(value.get("activity")), frames=frames, reason=_text(value.get("reason")), role=_text(value.get("role")),
        path=tuple(_text(step) for step in value.get("path") or ()), stands_seconds=_number(value.get("stands_seconds")),
        moving=tuple(_ranks(value.get("moving_ranks"))),
        standing_steps=min(_int(value.get("standing_steps")) or 0, len(value.get("path") or ())), told=_text(value.get("title")),
    )  # fmt: skip


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
