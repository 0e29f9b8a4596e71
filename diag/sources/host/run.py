"""Records of diag's own making about the run: its start and end, the ranks found, what cannot be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from diag.model import Placement, Record
from diag.model.observations import (
    EnvironmentSeen,
    Interrupted,
    JournalCutOff,
    LogsEnded,
    NetworkExpected,
    Observation,
    RankFound,
    RecorderAsked,
    RunEnded,
    RunStarted,
    SamplingGap,
    SnapshotTaken,
    SourceFailed,
    SourceWorks,
    Unparsed,
)

SOURCE = "run"
_OF_LOGS = tuple(field.name for field in fields(LogsEnded) if field.name != "rank")


def started(argv: list[str], pid: int, host: str, world_size: int = 0, cwd: str = "") -> Record:
    payload = {"event": "started", "argv": argv, "pid": pid, "world_size": world_size, "cwd": cwd}
    return Record(SOURCE, payload, host=host)


def expected(nets: list[str], host: str) -> Record:
    """The user's word on which networks NCCL should use between nodes."""
    return Record(SOURCE, {"event": "expected", "nets": nets}, host=host)


def ended(returncode: int, host: str) -> Record:
    return Record(SOURCE, {"event": "ended", "returncode": returncode}, host=host)


def interrupted(signal: int, host: str) -> Record:
    return Record(SOURCE, {"event": "interrupted", "signal": signal}, host=host)


def looked_away(seconds: float, host: str) -> Record:
    return Record(SOURCE, {"event": "away", "seconds": round(seconds, 3)}, host=host)


def rank_found(
    place: Placement, command: str, variables: dict[str, str], *, distributed: bool = True
) -> Record:
    payload = {
        "event": "rank",
        "placement": place.to_json(),
        "command": command,
        "env": variables,
        "distributed": distributed,
    }
    return Record(SOURCE, payload, rank=place.rank, host=place.host)


def cut_off(at: float) -> Record:
    """Put behind a journal that nobody closed."""
    return Record(SOURCE, {"event": "cut_off"}, at=at)


def logs_ended(outcome: LogsEnded) -> Record:
    return Record(SOURCE, {"event": "logs_ended", **{name: getattr(outcome, name) for name in _OF_LOGS}})


def snapshot(
    name: str, began: float, silent_seconds: float | None, why: str, *, final: bool = True
) -> Record:
    """The records since told time `began` are one moment that was captured by hand."""
    payload = {
        "event": "snapshot",
        "name": name,
        "began": began,
        "silent": silent_seconds,
        "why": why,
        "final": final,
    }
    return Record(SOURCE, payload)


def failed(source: str, reason: str, remedy: str = "", *, rank: int | None = None, host: str = "") -> Record:
    return Record(
        SOURCE, {"event": "failed", "source": source, "reason": reason, "remedy": remedy}, rank, host
    )


def works(source: str, *, rank: int | None = None, host: str = "") -> Record:
    return Record(SOURCE, {"event": "works", "source": source}, rank, host)


def parse(record: Record) -> Iterator[Observation]:
    payload: Any = record.payload
    event = payload.get("event") if isinstance(payload, dict) else None
    try:
        if event == "started":
            yield RunStarted(
                None,
                tuple(map(str, payload["argv"])),
                int(payload["pid"]),
                record.host,
                int(payload["world_size"]),
                str(payload.get("cwd", "")),  # captures of older versions have none
            )
        elif event == "ended":
            yield RunEnded(None, int(payload["returncode"]))
        elif event == "interrupted":
            yield Interrupted(None, int(payload["signal"]))
        elif event == "away":
            yield SamplingGap(None, float(payload["seconds"]))
        elif event == "rank":
            place = Placement.from_json(payload["placement"])
            yield RankFound(place.rank, place, str(payload["command"]), bool(payload["distributed"]))
            variables = payload["env"]
            yield EnvironmentSeen(
                place.rank, place.pid, tuple((str(k), str(v)) for k, v in variables.items())
            )
        elif event == "snapshot":
            silent = payload["silent"]
            yield SnapshotTaken(
                None,
                str(payload["name"]),
                float(payload["began"]),
                None if silent is None else float(silent),
                str(payload["why"]),
                bool(payload.get("final", True)),
            )
        elif event == "cut_off":
            yield JournalCutOff(None)
        elif event == "logs_ended":
            yield _logs_ended(payload)
        elif event == "expected":
            yield NetworkExpected(None, tuple(map(str, payload["nets"])))
        elif event == "asked":
            yield RecorderAsked(record.rank)
        elif event == "failed":
            yield SourceFailed(
                record.rank, str(payload["source"]), str(payload["reason"]), str(payload["remedy"])
            )
        elif event == "works":
            yield SourceWorks(record.rank, str(payload["source"]))
        else:
            yield Unparsed(record.rank, SOURCE, f"unknown event {event!r}", repr(payload)[:200])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        yield Unparsed(record.rank, SOURCE, f"{type(error).__name__}: {error}", repr(payload)[:200])


def _logs_ended(payload: dict[str, Any]) -> LogsEnded:
    began, ended = payload["began"], payload["ended"]
    return LogsEnded(
        None,
        tuple(map(str, payload["files"])),
        str(payload["launcher"]),
        None if began is None else float(began),
        None if ended is None else float(ended),
        float(payload["quiet_seconds"]),
        bool(payload["hung"]),
        tuple(map(str, payload["error"])),
        float(payload["error_at"]),
        str(payload["exception"]),
    )
