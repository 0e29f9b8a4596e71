"""The entries of a Flight Recorder dump as torch writes them, and which of them are pending. Believes nothing
of their types."""

from __future__ import annotations

import dataclasses
from typing import Any

from diag.model.observations import CollectiveEntry
from diag.sources.payload import integer, mapping, numbers_in, sequence, word

MAX_TENSORS = 64


_TENSORS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_Tensors = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[str, ...]]


def _entry(raw: dict[str, Any], known: dict[str, _Tensors]) -> CollectiveEntry:
    backend, _, op = word(raw.get("profiling_name")).rpartition(":")
    group = [*sequence(raw.get("process_group")), "", ""]
    is_p2p = raw.get("is_p2p") is True
    tensors = [raw.get(name) for name in _TENSORS]
    key = repr(
        tensors
    )  # a program makes the same calls again and again: reading them anew is half of the cost
    if key not in known:
        types = (*sequence(tensors[2])[:MAX_TENSORS], *sequence(tensors[3])[:MAX_TENSORS])
        known[key] = (shapes(tensors[0]), shapes(tensors[1]), tuple(word(item) for item in types))
    inputs, outputs, dtypes = known[key]
    return CollectiveEntry(
        backend=backend,
        group=word(group[0]),
        desc=word(group[1]),
        seq=integer(raw.get("p2p_seq_id" if is_p2p else "collective_seq_id")),
        op_id=integer(raw.get("op_id")),
        is_p2p=is_p2p,
        op=op,
        input_sizes=inputs,
        output_sizes=outputs,
        dtypes=dtypes,
        state=word(raw.get("state")),
        retired=raw.get("retired") is True,
        pending=True,
        record_id=integer(raw.get("record_id")),
        time_created=integer(raw.get("time_created_ns")) / 1e9,
    )


def settle(raw: list[dict[str, Any]], status: dict[Any, Any]) -> list[CollectiveEntry]:
    """Find which are pending; `state` alone does not show it.

    gloo's never leaves "scheduled", `retired` does. NCCL retires also what timed out. And the parts of a
    coalesced call (batch_isend_irecv, coalesced collectives) may stay "scheduled" forever: the call's own
    entry, which follows, decides.
    """
    found = _numbered(raw)
    whole: dict[tuple[str, str, bool, int], bool] = {}
    finished_one: set[tuple[str, str, bool]] = set()
    newest: dict[tuple[str, str, bool], int] = {}
    for entry in found:
        kind = (entry.backend, entry.group, entry.is_p2p)
        if entry.op == "coalesced":
            whole[(*kind, entry.seq)] = _finished(entry)
        if _finished(entry):
            finished_one.add(kind)
        newest[kind] = entry.record_id
    settled = []
    for item, entry in zip(raw, found, strict=True):
        kind = (entry.backend, entry.group, entry.is_p2p)
        finished = _finished(entry) or whole.get((*kind, entry.seq), False)
        if not finished and entry.backend != "gloo":  # gloo's calls may end out of their order
            if entry.is_p2p:
                # A dump of active entries only has lost the whole's: a part is over when another call came
                # after it.
                alone = (*kind, entry.seq) not in whole and kind not in finished_one
                finished = alone and entry.state == "scheduled" and entry.record_id < newest[kind]
            elif (entry.backend, entry.group, True) not in newest:
                finished = (
                    0 < entry.seq <= (count(status_of(status, item).get("last_completed_collective")) or 0)
                )
        if finished:  # nobody else has it yet, and `replace` would be a quarter of the cost
            object.__setattr__(entry, "pending", False)
        settled.append(entry)
    return settled


def _finished(entry: CollectiveEntry) -> bool:
    return entry.state == "completed" or (entry.retired and entry.backend != "nccl")


def _numbered(raw: list[dict[str, Any]]) -> list[CollectiveEntry]:
    """The entry of a whole batch_isend_irecv says that it is no P2P call, and has the number of the last
    collective; by its op_id it belongs to the part before it (torch 2.11, H200:
    tests/captures/fr/batch_p2p_0.json)."""
    found: list[CollectiveEntry] = []
    known: dict[str, _Tensors] = {}
    before: dict[tuple[str, str], CollectiveEntry] = {}
    for item in raw:
        entry = _entry(item, known)
        part = before.get((entry.backend, entry.group))
        if entry.op == "coalesced" and part is not None and part.is_p2p and part.op_id == entry.op_id:
            entry = dataclasses.replace(entry, is_p2p=True, seq=integer(item.get("p2p_seq_id")))
        before[entry.backend, entry.group] = entry
        found.append(entry)
    return found


# --- words and numbers of strangers


def status_of(status: dict[Any, Any], entry: dict[str, Any]) -> dict[Any, Any]:
    """The keys of pg_status are the process's own numbers of groups, which only the entries connect with names."""
    number = entry.get("pg_id")
    return mapping(status.get(str(number))) if isinstance(number, (int, str)) else {}


def members_of(value: Any) -> tuple[int, ...]:
    return numbers_in(value) if isinstance(value, str) else ()


def count(value: Any) -> int | None:
    number = integer(value)
    return number if number > 0 else None


def shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(integer(size) for size in sequence(item)[:16]) for item in sequence(value)[:MAX_TENSORS]
    )
