"""Digests: what one node's hub reports to the job hub every few seconds, and the verdict that comes back.

A digest is the observations themselves as JSON. Times in it are seconds before or after the sender's `now`,
so that no two clocks are ever compared; `parse` shifts them to the clock of the engine that took the digest.
"""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from diag.model import Finding, Record, pack_ranks
from diag.model import observations as facts
from diag.sources.payload import UNFIT, from_mapping, guarded, mapping
from diag.state.stack_digest import parse_spans

SOURCE = "digest"
VERDICT_SOURCE = "verdict"
SCHEMA = "diag.digest/1"

# Facts of single ranks that only make sense beside those of all others: they go up as they are.
FORWARDED: tuple[type[facts.Observation], ...] = (
    facts.FlightRecorder,
    facts.RasReading,
    facts.WatchdogState,
    facts.CollectiveTimedOut,
    facts.NcclCommunicator,
    facts.NcclNetChosen,
    facts.NcclNetDiffers,
    facts.NcclNetFailed,
    facts.NcclBootstrap,
    facts.NcclSockets,
    facts.NcclIbDevices,
    facts.NcclVersion,
    facts.NcclEnvironment,
    facts.NcclLibraryMissing,
    facts.NcclInterfaceMissing,
)
_FACTS = {kind.__name__: kind for kind in FORWARDED}
_MOST_FRAMES = 400
_NODE_TIMES = ("phase_at", "iteration_at", "log_moved_at", "save_moved_at", "started_at")
_RANK_TIMES = ("at", "tree_at", "stopped_at", "stack_at", "stack_since")
_MOST_MEMBERS = 1 << 18
_LONGEST_SECONDS = 1e8  # three years: a time further away is no time of a job


def _new_adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # 100 ms that only those pay who hear of other nodes

    return TypeAdapter(kind)


_adapter: Callable[[Any], Any] = functools.cache(_new_adapter)


# --- making


def wire(fact: Any, now: float) -> Any:
    """A fact as JSON, with its times relative to `now`; default values are left out."""
    moved = _moved(fact, -now)
    if isinstance(moved, facts.JobVerdict):
        short = [_short_ranks(finding) for finding in moved.findings]
        return {**_dumped(replace(moved, findings=())), "findings": short}
    return _dumped(moved)


def _dumped(fact: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = _adapter(type(fact)).dump_python(fact, mode="json", exclude_defaults=True)
    return dumped


def _short_ranks(finding: Finding) -> dict[str, Any]:
    """Ranks as ranges: of 8,192 that wait for one it is a tenth of a percent."""
    packed = {"ranks": pack_ranks(finding.ranks), "waiting_ranks": pack_ranks(finding.waiting_ranks)}
    return {**_dumped(replace(finding, ranks=(), waiting_ranks=())), **packed}


def wire_all(these: Iterable[facts.Observation], now: float) -> dict[str, Any]:
    """Forwarded facts as a digest has them. Of recorders each call is there once, by its place: ranks of a
    node made the same."""
    calls: dict[facts.CollectiveEntry, int] = {}
    rows = []
    for fact in these:
        if isinstance(fact, facts.FlightRecorder):
            places = [calls.setdefault(entry, len(calls)) for entry in fact.entries]
            rows.append([type(fact).__name__, {**_packed(fact), "entries": places}])
        else:
            rows.append([type(fact).__name__, wire(fact, now)])
    return {"facts": rows, "calls": [_dumped(entry) for entry in calls]} if calls else {"facts": rows}


def _packed(fact: facts.FlightRecorder) -> dict[str, Any]:
    """Each rank's recorder names all members of all of its groups."""
    bare = replace(fact, groups=tuple(replace(group, members=()) for group in fact.groups), entries=())
    packed = _dumped(bare)
    for row, group in zip(packed["groups"], fact.groups, strict=True):
        row["members"] = pack_ranks(group.members)
    return packed


def verdict(fact: facts.JobVerdict, now: float) -> dict[str, Any]:
    """The payload by which a node's own engine learns what the job hub found. `now` is the time of the job hub's engine."""
    return {"event": "verdict", "fact": wire(fact, now)}


def lost(reason: str) -> dict[str, Any]:
    return {"event": "lost", "reason": reason}


def probed(run_id: str, host: str, answer: str, seconds: float) -> dict[str, Any]:
    return {"event": "probed", "run_id": run_id, "host": host, "answer": answer, "seconds": seconds}


# --- reading


@guarded(SOURCE)
def parse(record: Record) -> Iterator[facts.Observation]:
    """Frames first, then the node, its ranks and what they forward. Never raises."""
    payload = record.payload
    if payload.get("event") == "probed":
        yield from_mapping(facts.NodeProbed, payload, rank=None)
        return
    node: facts.NodeDigest = _moved(_adapter(facts.NodeDigest).validate_python(payload["node"]), record.at)
    frames = [
        facts.FramesSeen(None, str(key), tuple(_frame(frame) for frame in rows[:_MOST_FRAMES]))
        for key, rows in payload.get("frames", {}).items()
    ]
    of_rank = _adapter(facts.RankDigest)
    ranks = [_moved(of_rank.validate_python(row), record.at) for row in payload.get("ranks", ())]
    yield from frames
    yield node
    commands = mapping(payload.get("commands"))
    for rank in ranks:
        yield facts.RankFound(rank.rank, rank.placement, str(commands.get(str(rank.rank), "")))
        yield rank
        if rank.exited is not None:
            yield rank.exited
    yield from _forwarded(payload.get("facts", ()), payload.get("calls", ()), record)
    if node.iteration is not None:
        yield facts.Iteration(None, node.iteration, node.total_iterations, "")


@guarded(VERDICT_SOURCE)
def parse_verdict(record: Record) -> Iterator[facts.Observation]:
    payload = record.payload
    if payload.get("event") == "lost":
        yield facts.VerdictLost(None, str(payload["reason"]))
        return
    fact = payload["fact"]
    rows = [
        {**row, **{name: _ranks_of(row[name]) for name in ("ranks", "waiting_ranks") if name in row}}
        for row in fact.get("findings", ())
    ]
    yield _moved(_adapter(facts.JobVerdict).validate_python({**fact, "findings": rows}), record.at)


def _forwarded(rows: Any, calls: Any, record: Record) -> Iterator[facts.Observation]:
    same = [_same(_adapter(facts.CollectiveEntry).validate_python(call)) for call in calls]
    for row in rows if isinstance(rows, list) else ():
        try:
            name, fact = row
            if name == "FlightRecorder":
                yield _recorder(fact, same)
            else:
                yield _moved(_adapter(_FACTS[name]).validate_python(fact), record.at)
        except UNFIT as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            yield facts.Unparsed(None, SOURCE, reason, reprlib.repr(row)[:200])


def _recorder(row: Mapping[str, Any], calls: list[facts.CollectiveEntry]) -> facts.FlightRecorder:
    """What is equal in many ranks' recorders is kept once: there are two readings of each rank of the job."""
    members = [_ranks_of(group.get("members", "")) for group in row["groups"]]
    bare = {**row, "groups": [{**group, "members": ()} for group in row["groups"]], "entries": ()}
    fact: facts.FlightRecorder = _adapter(facts.FlightRecorder).validate_python(bare)
    return replace(
        fact,
        groups=tuple(
            _same(replace(group, members=found)) for group, found in zip(fact.groups, members, strict=True)
        ),
        entries=tuple(calls[_place(place)] for place in row["entries"]),
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


def _ranks_of(ranks: Any) -> Any:
    """Ranges as tuples that all who name the same share; what is no text is left to whoever checks it."""
    return (_members(ranks) if ranks else ()) if isinstance(ranks, str) else ranks


def _frame(row: Any) -> Any:
    function, file, line = row
    return facts.Frame(str(function), str(file), int(line))


# --- times


def _moved(fact: Any, by: float) -> Any:
    """The fact with its times shifted. Of a forwarded fact: the source's own
    clock is its own."""
    if isinstance(fact, facts.NodeDigest):
        return replace(
            fact,
            findings=_findings(fact.findings, by),
            deaths=_findings(fact.deaths, by),
            hangs=_findings(fact.hangs, by),
            **_times(fact, _NODE_TIMES, by),
        )
    if isinstance(fact, facts.RankDigest):
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
    if isinstance(fact, facts.JobVerdict):
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
