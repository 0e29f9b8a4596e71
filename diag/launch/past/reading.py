"""What is remembered of one run: read from run.json, findings.jsonl and the times of its files. They may be torn, and a
person may have put anything there."""

# paths are text here: of a thousand runs a `Path` each costs as much as reading them
# ruff: noqa: PTH119, PTH120
from __future__ import annotations

import json
import math
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from diag.launch import runs
from diag.launch.launchers.secrets import redacted
from diag.launch.past.folders import FACTS, FACTS_SCHEMA, PAST

_MOST_BYTES = 16 << 20  # of findings.jsonl: a run of weeks has some hundred kB
_MOST_FINDINGS = 200
_MOST_WORDS = 2000
_WRITES_SECONDS = 120.0  # a living hub flushes its journal each second
_LEVELS = ("critical", "warning", "info")
_LATEST = 1e11


@dataclass(frozen=True, slots=True)
class PastFinding:
    """As it was told last. `open`: it still was when the run ended, or is now."""

    id: str
    klass: str
    severity: str
    ranks: tuple[int, ...]
    open: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "class": self.klass,
            "severity": self.severity,
            "ranks": list(self.ranks),
            "open": self.open,
        }


@dataclass(frozen=True, slots=True)
class PastRun:
    """`state`: running, held-up, hung, finished, failed, unwatched (the job goes on without its diag) or unknown.
    `ended` is None while it runs and where it is not known. `facts` are those of facts.json, which the hub wrote at its
    end: see docs/reference/run-directory.md. `final`: nothing of it changes any more. Gravest findings come first."""

    id: str
    path: str
    host: str
    state: str
    began: float
    ended: float | None
    returncode: int | None
    argv: tuple[str, ...]
    findings: tuple[PastFinding, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    final: bool = False

    @property
    def seconds(self) -> float | None:
        return None if self.ended is None else max(0.0, self.ended - self.began)

    @property
    def step(self) -> int | None:
        return _whole(self.facts.get("iteration"))

    @property
    def steps(self) -> int | None:
        """Of the training."""
        return _whole(self.facts.get("total_iterations"))

    @property
    def evidence_kept(self) -> bool:
        """False: its journal was removed to make room."""
        return os.path.basename(os.path.dirname(self.path)) != PAST

    @property
    def succeeded(self) -> bool:
        return self.state == "finished" and not any(one.severity == "critical" for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As `diag runs --json` has it."""
        return {
            "id": self.id,
            "path": self.path,
            "host": self.host,
            "state": self.state,
            "began_at": self.began,
            "ended_at": self.ended,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "returncode": self.returncode,
            "iteration": self.step,
            "total_iterations": self.steps,
            "findings": [one.to_json() for one in self.findings],
            "argv": list(self.argv),
            "evidence_kept": self.evidence_kept,
        }

    def packed(self) -> dict[str, Any]:
        """For `unpacked`, without its place."""
        return {**asdict(self), "path": ""}


def unpacked(data: Mapping[str, Any], path: str) -> PastRun:
    """Raises KeyError, TypeError or ValueError for what `packed` did not make."""
    findings = tuple(PastFinding(**{**one, "ranks": tuple(one["ranks"])}) for one in data["findings"])
    run = PastRun(**{**data, "path": path, "argv": tuple(data["argv"]), "findings": findings})
    if not isinstance(run.facts, dict) or not isinstance(run.began, float):
        raise TypeError("not a run")
    return run


def read_past(path: str) -> PastRun:
    """Raises DiagError for what is no run directory of this user, OSError for one that is gone."""
    data = runs.read_run(path, ours=True)
    facts = _json(os.path.join(path, FACTS))
    facts = facts if facts.get("schema") == FACTS_SCHEMA else {}
    began = _time(data.get("started_at")) or os.lstat(path).st_mtime
    argv = [str(word) for word in _list(data.get("argv"))[:_MOST_WORDS]]
    run = PastRun(
        os.path.basename(path),
        path,
        str(data.get("host", "")),
        "unknown",
        float(began),
        None,
        _whole(data.get("returncode")),
        tuple(redacted(argv)),  # of older versions, and of copies that a person changed
        _findings(os.path.join(path, "findings.jsonl")),
        facts,
    )
    if data.get("ended") is True:
        ended = _time(facts.get("ended_at")) or os.lstat(os.path.join(path, "run.json")).st_mtime
        return replace(run, state=_end_of(run.returncode), ended=ended, final=True)
    return _of_no_end(run, data)


def _end_of(returncode: int | None) -> str:
    return "unknown" if returncode is None else "failed" if returncode else "finished"


def _of_no_end(run: PastRun, data: Mapping[str, Any]) -> PastRun:
    """Its hub lives, or has not written its end."""
    here = runs.is_ours(dict(data))
    try:
        hub = here and runs.is_alive(int(data["hub_pid"]), data.get("hub_start_ticks"))
        job = here and runs.is_alive(int(data["pid"]), data.get("pid_start_ticks"))
    except (KeyError, TypeError, ValueError, OverflowError):
        hub = job = False
    written = _written_at(run.path)
    if hub or (not here and written is not None and time.time() - written < _WRITES_SECONDS):
        open_now = {one.id for one in run.findings if one.open}
        state = "hung" if "hang" in open_now else "held-up" if "held-up" in open_now else "running"
        return replace(run, state=state)
    if job:
        return replace(run, state="unwatched")
    told = _json(os.path.join(run.path, "ended.json"))
    code = _whole(told.get("returncode"))
    # Of another host the job may go on without its hub; here its carrier may be about to write the end.
    settled = here and written is not None and time.time() - written > _WRITES_SECONDS
    return replace(
        run,
        state=_end_of(code),
        returncode=code,
        ended=_time(told.get("at")) or (written if here else None),
        final=settled or code is not None,
    )


def _findings(path: str) -> tuple[PastFinding, ...]:
    """In their last form, gravest first; without those that another finding took the place of."""
    last: dict[tuple[str, str], PastFinding] = {}
    for change in _lines(path):
        finding = change.get("finding")
        if not isinstance(finding, dict):
            continue
        key = (str(finding.get("id", "")), str(finding.get("subject", "")))
        if change.get("replaced"):
            last.pop(key, None)
        elif key[0] and (key in last or len(last) < _MOST_FINDINGS):
            ranks = finding.get("ranks")
            numbers = [number for one in _list(ranks) if (number := _whole(one)) is not None]
            severity = str(finding.get("severity"))
            last[key] = PastFinding(
                key[0][:100],
                str(finding.get("class") or "")[:100],
                severity if severity in _LEVELS else "info",
                tuple(numbers[:_MOST_WORDS]),
                change.get("change") != "resolved",
            )
    return tuple(sorted(last.values(), key=lambda one: (_LEVELS.index(one.severity), not one.open)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _lines(path: str) -> Iterator[dict[str, Any]]:
    """Its whole lines that are JSON objects."""
    for line in _read(path).split(b"\n"):
        if line.startswith(b"{"):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found


def _json(path: str) -> dict[str, Any]:
    return next(_lines(path), {})


def _read(path: str) -> bytes:
    """Of a file, nothing of anything else: a FIFO or a device under its name may never end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        try:
            return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        except OSError:
            return b""


def _written_at(path: str) -> float | None:
    """When anything was written into it last."""
    found: list[float] = []
    try:
        with os.scandir(path) as entries:
            for entry, _ in zip(entries, range(_MOST_WORDS), strict=False):
                if entry.is_file(follow_symlinks=False):
                    found.append(entry.stat(follow_symlinks=False).st_mtime)
    except OSError:
        return None
    return max(found, default=None)


def stamp(path: str) -> str:
    """Changes with run.json, which its hub writes last. Empty where there is none."""
    try:
        found = os.lstat(os.path.join(path, "run.json"))
    except OSError:
        return ""
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"


def is_of_this_host(run: PastRun) -> bool:
    return run.host == socket.gethostname()


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else None


def _time(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and 0 < value < _LATEST else None
