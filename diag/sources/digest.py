"""Digests: what one node's hub tells the job hub every few seconds, and the verdict that comes back.

A digest is the observations themselves as JSON. Times in it are seconds before or after the sender's `now`,
so that no two clocks are ever compared; `parse` lays them on the told time of whoever took the digest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diag.model import Finding, Record, pack_ranks
from diag.model.observations import (
    CollectiveEntry,
    CollectiveTimedOut,
    FlightRecorder,
    FramesSeen,
    Iteration,
    JobVerdict,
    NcclBootstrap,
    NcclCommunicator,
    NcclEnvironment,
    NcclIbDevices,
    NcclInterfaceMissing,
    NcclLibraryMissing,
    NcclNetChosen,
    NcclNetDiffers,
    NcclNetFailed,
    NcclSockets,
    NcclVersion,
    NodeDigest,
    NodeProbed,
    Observation,
    RankDigest,
    RankFound,
    RasReading,
    Unparsed,
    VerdictLost,
    WatchdogState,
)
from diag.state.stack_digest import parse_spans

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SOURCE = "digest"
VERDICT_SOURCE = "verdict"
SCHEMA = "diag.digest/1"

# Facts of single ranks that only make sense beside those of all others: they go up as they are.
FORWARDED: tuple[type[Observation], ...] = (
    FlightRecorder,
    RasReading,
    WatchdogState,
    CollectiveTimedOut,
    NcclCommunicator,
    NcclNetChosen,
    NcclNetDiffers,
    NcclNetFailed,
    NcclBootstrap,
    NcclSockets,
    NcclIbDevices,
    NcclVersion,
    NcclEnvironment,
    NcclLibraryMissing,
    NcclInterfaceMissing,
)
_FACTS = {kind.__name__: kind for kind in FORWARDED}
_MOST_FRAMES = 400
_NODE_TIMES = ("phase_at", "iteration_at", "log_moved_at", "save_moved_at", "started_at")
_RANK_TIMES = ("at", "tree_at", "stopped_at", "stack_at", "stack_since")
_MOST_MEMBERS = 1 << 18
_LONGEST_SECONDS = 1e8  # three years: a time further away is no time of a job


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter  # 100 ms that only those pay who hear of other nodes

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


# --- making


def wire(fact: Any, now: float) -> Any:
    """A fact as JSON, with its times relative to `now`. What is as by default is left out."""
    if isinstance(fact, JobVerdict):
        fact = _moved(fact, -now)
        told = _adapter(JobVerdict).dump_python(
            replace(fact, findings=()), mode="json", exclude_defaults=True
        )
        return {**told, "findings": [_short_ranks(finding) for finding in fact.findings]}
    return _adapter(type(fact)).dump_python(_moved(fact, -now), mode="json", exclude_defaults=True)


def _short_ranks(finding: Finding) -> dict[str, Any]:
    """Ranks as ranges: of 8,192 that wait for one it is a tenth of a percent."""
    bare = replace(finding, ranks=(), waiting_ranks=())
    told: dict[str, Any] = _adapter(Finding).dump_python(bare, mode="json", exclude_defaults=True)
    return {
        **told,
        "ranks": pack_ranks(finding.ranks),
        "waiting_ranks": pack_ranks(finding.waiting_ranks),
    }


def wire_all(facts: Iterable[Observation], now: float) -> dict[str, Any]:
    """Forwarded facts as a digest has them. Of recorders each call is there once, by its place: ranks of a
    node made the same."""
    calls: dict[CollectiveEntry, int] = {}
    rows = []
    for fact in facts:
        if isinstance(fact, FlightRecorder):
            places = [calls.setdefault(entry, len(calls)) for entry in fact.entries]
            rows.append([type(fact).__name__, {**_packed(fact), "entries": places}])
        else:
            rows.append([type(fact).__name__, wire(fact, now)])
    told = [
        _adapter(CollectiveEntry).dump_python(entry, mode="json", exclude_defaults=True) for entry in calls
    ]
    return {"facts": rows, "calls": told} if told else {"facts": rows}


def _packed(fact: FlightRecorder) -> dict[str, Any]:
    """Each rank's recorder names all members of all of its groups."""
    bare = replace(fact, groups=tuple(replace(group, members=()) for group in fact.groups), entries=())
    told: dict[str, Any] = _adapter(FlightRecorder).dump_python(bare, mode="json", exclude_defaults=True)
    for row, group in zip(told["groups"], fact.groups, strict=True):
        row["members"] = pack_ranks(group.members)
    return told


def verdict(fact: JobVerdict, now: float) -> dict[str, Any]:
    """The payload by which a node's own engine hears what the job hub says. `now` is the job hub's told time."""
    return {"event": "verdict", "fact": wire(fact, now)}


def lost(reason: str) -> dict[str, Any]:
    return {"event": "lost", "reason": reason}


def probed(run_id: str, host: str, answer: str, seconds: float) -> dict[str, Any]:
    return {"event": "probed", "run_id": run_id, "host": host, "answer": answer, "seconds": seconds}


# --- reading


def parse(record: Record) -> Iterator[Observation]:
    """Frames first, then the node, its ranks and what they forward. Never raises."""
    payload = record.payload
    try:
        if payload.get("event") == "probed":
            words = [str(payload[name]) for name in ("run_id", "host", "answer")]
            yield NodeProbed(None, words[0], words[1], words[2], float(payload["seconds"]))
            return
        node: NodeDigest = _moved(_adapter(NodeDigest).validate_python(payload["node"]), record.at)
        frames = [
            FramesSeen(None, str(key), tuple(_frame(frame) for frame in rows[:_MOST_FRAMES]))
            for key, rows in payload.get("frames", {}).items()
        ]
        ranks = [
            _moved(_adapter(RankDigest).validate_python(row), record.at) for row in payload.get("ranks", ())
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        yield Unparsed(None, SOURCE, f"{type(error).__name__}: {str(error)[:200]}", _shown(payload))
        return
    yield from frames
    yield node
    commands = payload.get("commands", {})
    for rank in ranks:
        command = commands.get(str(rank.rank), "") if isinstance(commands, Mapping) else ""
        yield RankFound(rank.rank, rank.placement, str(command))
        yield rank
        if rank.exited is not None:
            yield rank.exited
    yield from _forwarded(payload.get("facts", ()), payload.get("calls", ()), record)
    if node.iteration is not None:
        yield Iteration(None, node.iteration, node.total_iterations, "")


def parse_verdict(record: Record) -> Iterator[Observation]:
    payload = record.payload
    try:
        if payload.get("event") == "lost":
            yield VerdictLost(None, str(payload["reason"]))
        else:
            told = payload["fact"]
            rows = [
                {**row, **{name: _ranks_of(row[name]) for name in ("ranks", "waiting_ranks") if name in row}}
                for row in told.get("findings", ())
            ]
            yield _moved(_adapter(JobVerdict).validate_python({**told, "findings": rows}), record.at)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        yield Unparsed(None, VERDICT_SOURCE, f"{type(error).__name__}: {str(error)[:200]}", _shown(payload))


def _forwarded(rows: Any, told: Any, record: Record) -> Iterator[Observation]:
    try:
        calls = [_same(_adapter(CollectiveEntry).validate_python(call)) for call in told]
    except (TypeError, ValueError, RecursionError) as error:
        yield Unparsed(None, SOURCE, f"{type(error).__name__}: {str(error)[:200]}", repr(told)[:200])
        return
    for row in rows if isinstance(rows, list) else ():
        try:
            name, fact = row
            if name == "FlightRecorder":
                yield _recorder(fact, calls)
            else:
                yield _moved(_adapter(_FACTS[name]).validate_python(fact), record.at)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            yield Unparsed(None, SOURCE, f"{type(error).__name__}: {str(error)[:200]}", _shown(row))


def _shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except RecursionError:
        return "nested too deep"


def _recorder(told: Mapping[str, Any], calls: list[CollectiveEntry]) -> FlightRecorder:
    """What is equal in many ranks' recorders is kept once: there are two readings of each rank of the job."""
    members = [_ranks_of(group.get("members", "")) for group in told["groups"]]
    bare = {**told, "groups": [{**group, "members": ()} for group in told["groups"]], "entries": ()}
    fact: FlightRecorder = _adapter(FlightRecorder).validate_python(bare)
    return replace(
        fact,
        groups=tuple(
            _same(replace(group, members=found)) for group, found in zip(fact.groups, members, strict=True)
        ),
        entries=tuple(calls[_place(place)] for place in told["entries"]),
    )


def _place(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no place of a call")
    return value


@functools.lru_cache(maxsize=8192)
def _same(value: Any) -> Any:
    return value


@functools.lru_cache(maxsize=8192)
def _members(text: str) -> tuple[int, ...]:
    spans = parse_spans(text)
    if sum(last - first + 1 for first, last in spans) > _MOST_MEMBERS:
        raise ValueError("too many ranks")
    return tuple(rank for first, last in spans for rank in range(first, last + 1))


def _ranks_of(told: Any) -> Any:
    """Ranges as tuples that all who name the same share; what is no text is left to whoever checks it."""
    return (_members(told) if told else ()) if isinstance(told, str) else told


def _frame(row: Any) -> Any:
    from diag.model.observations import Frame

    function, file, line = row
    return Frame(str(function), str(file), int(line))


# --- times


def _moved(fact: Any, by: float) -> Any:
    """The fact with its told times laid elsewhere on the line of time. Of a forwarded fact: the source's own
    clock is its own."""
    if isinstance(fact, NodeDigest):
        return replace(
            fact,
            findings=_findings(fact.findings, by),
            deaths=_findings(fact.deaths, by),
            hangs=_findings(fact.hangs, by),
            **_times(fact, _NODE_TIMES, by),
        )
    if isinstance(fact, RankDigest):
        exited = fact.exited
        if exited is not None and exited.ended is not None:
            exited = replace(exited, ended=_time(exited.ended, by))
        return replace(
            fact,
            moved=tuple((channel, _time(at, by)) for channel, at in fact.moved),
            exited=exited,
            looks=tuple(replace(look, at=_time(look.at, by)) for look in fact.looks),
            **_times(fact, _RANK_TIMES, by),
        )
    if isinstance(fact, JobVerdict):
        return replace(fact, findings=_findings(fact.findings, by))
    return fact


def _findings(findings: tuple[Finding, ...], by: float) -> tuple[Finding, ...]:
    return tuple(
        replace(
            one,
            since=_time(one.since, by),
            evidence=tuple(replace(item, at=_time(item.at, by)) for item in one.evidence),
        )
        for one in findings
    )


def _times(fact: Any, names: tuple[str, ...], by: float) -> dict[str, Any]:
    return {name: None if (at := getattr(fact, name)) is None else _time(at, by) for name in names}


def _time(at: float, by: float) -> float:
    """Raises ValueError for what is no time. What never was (0 of a rank state) stays long ago."""
    moved = at + by
    if not math.isfinite(moved):
        raise ValueError("no time")
    if by < 0:
        return round(max(moved, -_LONGEST_SECONDS), 3)
    return max(0.0, min(moved, by + _LONGEST_SECONDS))
