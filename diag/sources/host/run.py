"""Records of diag's own making about the run: its start and end, the ranks found, what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any

from diag.model import Placement, Record
from diag.model import observations as facts
from diag.sources.payload import from_mapping, guarded, integer, sequence

SOURCE = "run"
BEGAN_ANEW = "began_anew"
STARTED_AGAIN = "started_again"

# Payloads have the fields of these by their names; a rank's and those of a snapshot differ, see `parse`.
_EVENTS: dict[str, type[facts.Observation]] = {
    "started": facts.RunStarted,
    "ended": facts.RunEnded,
    "interrupted": facts.Interrupted,
    "away": facts.SamplingGap,
    "snapshot": facts.SnapshotTaken,
    "cut_off": facts.JournalCutOff,
    BEGAN_ANEW: facts.AttemptBegan,
    "acted": facts.Acted,
    "logs_ended": facts.LogsEnded,
    "end_unknown": facts.EndUnknown,
    "expected": facts.NetworkExpected,
    "asked": facts.RecorderAsked,
    "failed": facts.SourceFailed,
    "works": facts.SourceWorks,
    "withdrawn": facts.RankWithdrawn,
    "shared": facts.RankShared,
    "evidence": facts.EvidenceKept,
}


def _record(event: str, host: str = "", rank: int | None = None, **payload: Any) -> Record:
    return Record(SOURCE, {"event": event, **payload}, rank, host)


def started(
    argv: list[str],
    pid: int,
    host: str,
    world_size: int = 0,
    cwd: str = "",
    *,
    attached: bool = False,
    machine: str = "",
    pointed_at: bool = False,
) -> Record:
    ran: dict[str, Any] = {"attached": True} if attached else {}
    ran |= {"pointed_at": True} if pointed_at else {}
    ran |= {"machine": machine} if machine else {}
    return _record("started", host, argv=argv, pid=pid, world_size=world_size, cwd=cwd, **ran)


def expected(nets: list[str], host: str) -> Record:
    """Which networks NCCL should use between nodes, as the user set it."""
    return _record("expected", host, nets=nets)


def ended(returncode: int, host: str) -> Record:
    return _record("ended", host, returncode=returncode)


def interrupted(signal: int, host: str) -> Record:
    return _record("interrupted", host, signal=signal)


def looked_away(seconds: float, host: str) -> Record:
    return _record("away", host, seconds=round(seconds, 3))


def rank_found(
    place: Placement,
    command: str,
    variables: dict[str, str],
    *,
    distributed: bool = True,
    group: int = 0,
    thread: tuple[int, ...] = (),
) -> Record:
    """`group` and `thread`: see RankFound."""
    found: dict[str, Any] = {"command": command, "env": variables, "distributed": distributed}
    if group:
        found |= {"group": group, "thread": list(thread)}
    return _record("rank", place.host, place.rank, placement=place.to_json(), **found)


def rank_withdrawn(rank: int, pid: int, host: str) -> Record:
    return _record("withdrawn", host, rank, pid=pid)


def rank_shared(rank: int, pids: tuple[int, ...], host: str) -> Record:
    return _record("shared", host, rank, pids=list(pids))


def agents_seen(agents: Sequence[facts.Agent], host: str) -> Record:
    return _record("agents", host, agents=[list(astuple(one)) for one in agents])


def cut_off(at: float) -> Record:
    """Put behind a journal that was never closed."""
    return Record(SOURCE, {"event": "cut_off"}, at=at)


def began_anew(earlier: int, lines: int, ended_with: str) -> Record:
    """Before the first line of another attempt in the same log."""
    return _record(BEGAN_ANEW, earlier=earlier, lines=lines, ended_with=ended_with)


def is_another_attempt(record: Record) -> bool:
    return record.source == SOURCE and record.payload.get("event") in (BEGAN_ANEW, STARTED_AGAIN)


def acted(what: str, text: str, host: str, **more: Any) -> Record:
    """A step of what `--on` does; `more` are fields of `facts.Acted`."""
    return _record("acted", host, what=what, text=text, **more)


def started_again(number: int, earlier: Sequence[dict[str, Any]], host: str) -> Record:
    """Before all records of attempt `number`, which diag itself started; `earlier`: see facts.PastAttempt."""
    return _record(STARTED_AGAIN, host, number=number, earlier=list(earlier))


def logs_ended(outcome: facts.LogsEnded) -> Record:
    return _record("logs_ended", **{name: getattr(outcome, name) for name in facts.LogsEnded.__slots__})


def end_unknown() -> Record:
    """Behind the last of logs that do not tell how their job ended."""
    return _record("end_unknown")


def snapshot(
    name: str, began: float, silent_seconds: float | None, why: str, *, final: bool = True
) -> Record:
    """The records since `began` (engine time) are one moment that was captured by hand."""
    return _record("snapshot", name=name, began=began, silent=silent_seconds, why=why, final=final)


def evidence_kept(
    findings: Sequence[tuple[str, str]], path: str, size_bytes: int, seconds: float, host: str
) -> Record:
    """A bundle of these findings (id, subject) is on disk."""
    keys = [list(one) for one in findings]
    return _record(
        "evidence", host, findings=keys, path=path, size_bytes=size_bytes, seconds=round(seconds, 3)
    )


def failed(source: str, reason: str, remedy: str = "", *, rank: int | None = None, host: str = "") -> Record:
    return _record("failed", host, rank, source=source, reason=reason, remedy=remedy)


def works(source: str, *, rank: int | None = None, host: str = "") -> Record:
    return _record("works", host, rank, source=source)


@guarded(SOURCE)
def parse(record: Record) -> Iterator[facts.Observation]:
    payload = record.payload
    event = payload["event"]
    if event == "rank":
        place = Placement.from_json(payload["placement"])
        thread = tuple(integer(one) for one in sequence(payload.get("thread"))[:2])
        group = integer(payload.get("group"))
        command, distributed = str(payload["command"]), bool(payload["distributed"])
        yield facts.RankFound(place.rank, place, command, distributed, group, thread)
        variables = payload["env"]
        yield facts.EnvironmentSeen(
            place.rank, place.pid, tuple((str(k), str(v)) for k, v in variables.items())
        )
    elif event == "agents":
        rows = (sequence(one) for one in sequence(payload["agents"]))
        yield facts.AgentsSeen(None, tuple(map(_agent, rows)))
    elif event == STARTED_AGAIN:
        past = tuple(from_mapping(facts.PastAttempt, one) for one in sequence(payload["earlier"]))
        yield facts.StartedAgain(None, integer(payload["number"]), past)
    elif event in _EVENTS:
        known = {"host": record.host, "silent_seconds": payload.get("silent")}
        yield from_mapping(_EVENTS[event], {**known, **payload}, rank=record.rank)
    else:
        yield facts.Unparsed(record.rank, SOURCE, f"unknown event {event!r}"[:200], repr(payload)[:200])


def _agent(row: Sequence[Any]) -> facts.Agent:
    """Of three parts in records of earlier versions, which told only of agents that were seen to wait."""
    first = facts.Agent(integer(row[0]), integer(row[1]), str(row[2]))
    if len(row) < 6:
        return first
    hosts = tuple(str(one) for one in sequence(row[5]))
    return replace(first, run_id=str(row[3]), waits=bool(row[4]), hosts=hosts)
