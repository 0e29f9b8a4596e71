"""Collectives of a rank, from torch's Flight Recorder: over the worker server that the in-rank hook opens,
else through torch's dump pipe, or from a dump file.

`read` asks and cuts to what verdicts need, `look` asks for all calls in few bytes while the job moves. `parse`
makes one `FlightRecorder` of a reading and a `CallHistory` of both; `waitgraph` joins those of all ranks. Neither asks
for the lines that made the calls: those need the rank's GIL, which a hung rank may not give. `look_with_lines` does.
"""

from __future__ import annotations

import functools
import json
import re
import reprlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diag.model import Payload, Record, pack_ranks
from diag.model.observations import (
    CallHistory,
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    Observation,
    SourceFailed,
    SourceWorks,
    Unparsed,
)
from diag.model.observations.collectives import CALLS_KEPT
from diag.sources.collectives import call_ring, plain_pickle
from diag.sources.collectives.fr_pipe import ask_pipe, pipe_of
from diag.sources.collectives.fr_trace import MAX_TENSORS, count, members_of, settle, shapes, status_of
from diag.sources.collectives.worker_server import MAX_BYTES, NoAnswer, ask
from diag.sources.payload import UNFIT, explained, guarded, integer, mapping, sequence, word

SOURCE = "flight_recorder"

# What can go wrong, by the word in the payload: reason and remedy.
FAILURES = {
    "no_socket": (
        "the rank has not opened a worker server",
        "start the job with `diag run` without --no-inject; needs torch 2.4 or later, after init_process_group",
    ),
    "gone": ("the process has ended", ""),
    "timed_out": (
        "the worker server did not answer in time",
        "the machine may be overloaded, or the rank stopped; diag tries again",
    ),
    "no_handler": ("this version of torch does not expose the Flight Recorder through its worker server", ""),
    "too_large": (
        "the Flight Recorder's dump is larger than diag reads",
        "set TORCH_FR_BUFFER_SIZE to 2000 or less",
    ),
    "failed": ("the Flight Recorder could not be read", ""),
}
explain = functools.partial(explained, FAILURES)

_MAX_PENDING = 200  # of each group, the oldest: the front is among them
_MAX_GROUPS = 1000  # Megatron creates 50

# (handler, query), best first, of those the rank's torch has. None of these needs the GIL. Not only active
# entries: the parts of a coalesced call stay "scheduled" forever, and only the call's own completed entry
# shows that they are done.
_HANDLERS = (
    ("dump_nccl_trace_json", "includecollectives=true&onlyactive=false", "nccl"),
    ("dump_nccl_trace_pickle", "includecollectives=true&includestacktraces=false&onlyactive=false", "nccl"),
    # torch 2.13 has one recorder besides NCCL's (gloo's) and ignores `backend`; 2.15 has nccl2 in another.
    ("fr_trace_json", "backend=nccl2", "nccl2"),
    ("fr_trace_json", "backend=gloo", "gloo"),
)
# Of the in-rank hook, for the lines that made the calls.
_WITH_LINES = (("diag_nccl_trace", "nccl"), ("diag_fr_trace", "gloo"))
_RECORDERS = {recorder for _, _, recorder in _HANDLERS}


# --- asking a rank


def read(
    rank: int, pid: int, run_dir: Path, deadline: float = 3.0, *, pipe_deadline: float | None = None
) -> Payload:
    """{"pid", "answered": names of the recorders, "traces": torch's dumps less what we do not use, "calls": all calls
    (call_ring.pack)}, or, instead of the three, "failed": a key of FAILURES and "detail". The rank is not paused; a thread of its
    server answers. `pipe_deadline` is for a rank without a server: the dump of its pipe takes seconds (5 s on
    an H200 machine, stacks are symbolised)."""
    end = time.monotonic() + deadline
    try:
        try:
            answered, traces = _ask_all(socket_path(pid, run_dir), end)
            return {"pid": pid, "answered": answered, **_both(traces)}
        except NoAnswer as failure:
            if failure.word not in ("no_socket", "no_handler"):
                raise
            until = end if pipe_deadline is None else time.monotonic() + pipe_deadline
            return {
                "pid": pid,
                "answered": ["nccl"],
                **_both([_decode(ask_pipe(rank, pid, until))]),
                "how": "pipe",
            }
    except NoAnswer as failure:
        return {"pid": pid, "failed": failure.word, "detail": failure.detail[:300]}


def look(pid: int, run_dir: Path, deadline: float = 3.0) -> Payload:
    """{"pid", "answered", "calls", "ring_seconds": from the oldest call that is kept to the newest, null without two},
    or "failed" and "detail" as of `read`. Only of a rank with a server: each question through a pipe is a line in the
    job's log."""
    try:
        answered, traces = _ask_all(socket_path(pid, run_dir), time.monotonic() + deadline)
        packed = {"calls": call_ring.pack(traces), "ring_seconds": call_ring.ring_seconds(traces)}
        return {"pid": pid, "answered": answered, **packed}
    except NoAnswer as failure:
        return {"pid": pid, "failed": failure.word, "detail": failure.detail[:300]}


def look_with_lines(pid: int, run_dir: Path, deadline: float = 2.0) -> Payload | None:
    """As `look`, with the frames that made each call. The rank's GIL is held for some 30 ms for 2,000 calls. None where it
    does not answer: torch before 2.10, or whoever has the GIL does not give it."""
    path, end = socket_path(pid, run_dir), time.monotonic() + deadline
    try:
        names = json.loads(ask(path, "GET", "/handler/", end))
        wanted = [row for row in _WITH_LINES if isinstance(names, list) and row[0] in names]
        traces = [_decode(ask(path, "POST", f"/handler/{handler}", end)) for handler, _ in wanted]
    except (NoAnswer, ValueError):
        return None
    answered = [recorder for _, recorder in wanted]
    return {"pid": pid, "answered": answered, "calls": call_ring.pack(traces)} if traces else None


def has_server(pid: int, run_dir: Path) -> bool:
    return socket_path(pid, run_dir).exists()


def _both(traces: list[dict[str, Any]]) -> Payload:
    return {"traces": [_trim(trace) for trace in traces], "calls": call_ring.pack(traces)}


def socket_path(pid: int, run_dir: Path) -> Path:
    """Where the hook lets the rank's worker server listen."""
    return run_dir / f"w.{pid}.sock"


def reachable(rank: int, pid: int, run_dir: Path) -> bool:
    """Whether there is a server or a pipe to query: otherwise there is no torch, or no process group yet,
    and nothing is missing."""
    return has_server(pid, run_dir) or pipe_of(rank, pid) is not None


def _ask_all(path: Path, end: float) -> tuple[list[str], list[dict[str, Any]]]:
    """The recorders that answered, and their dumps."""
    try:
        names = json.loads(ask(path, "GET", "/handler/", end))
    except ValueError as error:
        raise NoAnswer("failed", f"no list of handlers: {error}") from None
    wanted = [row for row in _HANDLERS if isinstance(names, list) and row[0] in names]
    if not wanted:
        raise NoAnswer("no_handler", ", ".join(map(str, names)) if isinstance(names, list) else "")
    traces: list[dict[str, Any]] = []
    bodies: set[bytes] = set()
    answered: list[str] = []
    failure: NoAnswer | None = None
    for handler, query, recorder in wanted:
        if recorder in answered:
            continue
        try:
            body = ask(path, "POST", f"/handler/{handler}?{query}", end)
            answered.append(recorder)
            if body not in bodies:
                bodies.add(body)
                traces.append(_decode(body))
                # a torch that ignores `backend` need not be asked for the same again
                answered += sorted(_recorders(traces[-1]) - set(answered))
        except NoAnswer as error:  # one recorder less is still something
            failure = failure or error
    if failure is not None and not traces:
        raise failure
    return answered, traces


def _recorders(trace: dict[str, Any]) -> set[str]:
    """Those whose calls are in it."""
    entries = (entry for entry in sequence(trace.get("entries")) if isinstance(entry, dict))
    return {word(entry.get("profiling_name")).partition(":")[0] for entry in entries} & _RECORDERS


# --- dump files


def load_file(source: Path | bytes) -> Payload:
    """The payload of a dump file, as torch wrote it (pickle) or as JSON: fr_trace_0, comm_lib_trace_rank_0,
    nccl_trace_rank_0."""
    try:
        if isinstance(source, bytes):
            data = source
        else:
            with source.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise NoAnswer("too_large", f"more than {MAX_BYTES} bytes")
        return {"pid": 0, **_both([_decode(data)])}
    except OSError as error:
        return {"pid": 0, "failed": "failed", "detail": f"{source!s}: {error.strerror}"}
    except NoAnswer as failure:
        return {"pid": 0, "failed": failure.word, "detail": failure.detail[:300]}


def rank_of(path: Path) -> int | None:
    """The rank in a dump file's name: torch puts it last."""
    found = re.search(r"(\d{1,7})(?:\.json)?$", path.name)
    return int(found[1]) if found else None


def _decode(data: bytes) -> dict[str, Any]:
    try:
        trace = json.loads(data) if data.lstrip()[:1] == b"{" else plain_pickle.loads(data)
    except (ValueError, RecursionError) as error:
        if data.startswith(b"\xef\xbf\xbd"):
            raise NoAnswer(
                "failed", "a pickle that was saved as text: bytes that are not UTF-8 are lost"
            ) from None
        raise NoAnswer("failed", f"not a dump of the Flight Recorder: {error!r}") from None
    if not isinstance(trace, dict):
        raise NoAnswer("failed", "not a dump of the Flight Recorder")
    return trace


# --- cutting to size

_WORDS = ("profiling_name", "state")
_NUMBERS = ("pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "record_id", "time_created_ns")


def _trim(trace: dict[str, Any]) -> dict[str, Any]:
    """The part of what `parse` reads that a verdict needs: it gives the same result as the whole."""
    status = mapping(trace.get("pg_status"))
    raw = [entry for entry in sequence(trace.get("entries")) if isinstance(entry, dict)]
    entries = settle(raw, status)
    last: dict[tuple[str, str, bool], int] = {}
    pending: dict[tuple[str, str, bool], int] = {}
    keep: set[int] = set()
    for index in range(len(entries) - 1, -1, -1):
        key = (entries[index].backend, entries[index].group, entries[index].is_p2p)
        last[key] = last.get(key, 0) + 1
        if last[key] <= CALLS_KEPT:
            keep.add(index)
    for index, entry in enumerate(entries):
        key = (entry.backend, entry.group, entry.is_p2p)
        if entry.pending and pending.get(key, 0) < _MAX_PENDING:
            pending[key] = pending.get(key, 0) + 1
            keep.add(index)
    config = {
        word(key): {
            "name": word(value.get("name")),
            "desc": word(value.get("desc")),
            "ranks": _short(value.get("ranks")),
        }
        for key, value in list(mapping(trace.get("pg_config")).items())[:_MAX_GROUPS]
        if isinstance(value, dict)
    }
    return {
        "version": word(trace.get("version")),
        "pg_config": config,
        "pg_status": {
            str(key): {
                name: integer(value.get(name))
                for name in ("last_enqueued_collective", "last_completed_collective")
            }
            for key, value in list(status.items())[:_MAX_GROUPS]
            if isinstance(key, (str, int)) and isinstance(value, dict)
        },
        "entries": [_slim(raw[index], entries[index].is_p2p) for index in sorted(keep)],
    }


def _slim(entry: dict[str, Any], is_p2p: bool) -> dict[str, Any]:
    slim: dict[str, Any] = {name: word(entry.get(name)) for name in _WORDS}
    slim |= {name: integer(entry.get(name)) for name in _NUMBERS}
    slim |= {"retired": entry.get("retired") is True, "is_p2p": is_p2p}
    slim["process_group"] = [word(item) for item in sequence(entry.get("process_group"))[:2]]
    for side in ("input", "output"):
        slim[side + "_sizes"] = [list(shape) for shape in shapes(entry.get(side + "_sizes"))]
        slim[side + "_dtypes"] = [word(item) for item in sequence(entry.get(side + "_dtypes"))[:MAX_TENSORS]]
    return slim


def _short(ranks: Any) -> str:
    """A world of 16,384 as 0-16383: each rank's dump names all members of all of its groups."""
    return pack_ranks(members_of(ranks)) if isinstance(ranks, str) else ""


# --- reading


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    """The rank's collectives. Also of traces that were not trimmed, and of payloads without "calls"."""
    payload = record.payload
    pid = payload["pid"]
    if type(pid) is not int:
        raise TypeError("pid is not a number")
    if "failed" in payload:
        if payload["failed"] != "gone":  # other sources report its end
            yield SourceFailed(record.rank, SOURCE, *explain(payload))
        return
    answered = {word(item) for item in payload.get("answered", ())}
    yield SourceWorks(record.rank, SOURCE)
    if "calls" in payload:
        try:
            called = tuple(call_ring.unpack(payload["calls"]))
        except UNFIT as error:  # the rest is as good without it
            yield Unparsed(record.rank, SOURCE, f"calls: {error}"[:200], reprlib.repr(payload["calls"])[:200])
        else:
            backends = tuple(sorted({*answered, *(group.backend for group in called)}))
            yield CallHistory(record.rank, record.read_at, pid, backends, called)
        if "traces" not in payload:
            return
    traces = [mapping(trace) for trace in payload["traces"]]
    members: dict[str, tuple[int, ...]] = {}  # a gloo group's name serves NCCL too, which says who is in it
    for trace in traces:
        for config in mapping(trace.get("pg_config")).values():
            if found := members_of(mapping(config).get("ranks")):
                members.setdefault(word(mapping(config).get("name")), found)
    entries: list[CollectiveEntry] = []
    groups: dict[tuple[str, str], CollectiveGroup] = {}
    for trace in traces:
        _read_trace(trace, members, entries, groups)
    yield FlightRecorder(
        rank=record.rank,
        emitted=record.read_at,
        version=next((word(trace.get("version")) for trace in traces), ""),
        backends=tuple(
            sorted({*answered, *(entry.backend for entry in entries), *(backend for backend, _ in groups)})
        ),
        groups=tuple(groups.values()),
        entries=tuple(entries),
        pid=pid,
    )


def _read_trace(
    trace: dict[str, Any],
    members: dict[str, tuple[int, ...]],
    entries: list[CollectiveEntry],
    groups: dict[tuple[str, str], CollectiveGroup],
) -> None:
    status = mapping(trace.get("pg_status"))
    raw = [entry for entry in sequence(trace.get("entries")) if isinstance(entry, dict)]
    found = settle(raw, status)
    entries.extend(found)
    batched = {(entry.backend, entry.group) for entry in found if entry.is_p2p}
    for item, entry in zip(raw, found, strict=True):
        # With P2P in the group these count, now and then, P2P calls (same capture: enqueued 3, of 1
        # collective).
        numbers = status_of(status, item) if (entry.backend, entry.group) not in batched else {}
        groups[entry.backend, entry.group] = CollectiveGroup(
            entry.backend,
            entry.group,
            entry.desc,
            members.get(entry.group, ()),
            count(numbers.get("last_enqueued_collective")),
            count(numbers.get("last_completed_collective")),
        )
    backend = found[0].backend if found else "nccl"  # only NCCL's recorder says who is in its groups
    for config in mapping(trace.get("pg_config")).values():
        name, known = word(mapping(config).get("name")), members_of(mapping(config).get("ranks"))
        if known and (backend, name) not in groups:
            groups[backend, name] = CollectiveGroup(backend, name, word(mapping(config).get("desc")), known)
