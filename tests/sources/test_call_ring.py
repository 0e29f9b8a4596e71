"""All calls of a recorder's ring: packed and unpacked, and compared with the whole dump's verdicts."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import CallHistory, FlightRecorder, SourceWorks, Unparsed
from diag.sources.collectives import call_ring
from diag.sources.collectives import flight_recorder as source
from diag.state.passed_calls import passed_mismatches

Raw = dict[str, Any]


def raw(
    seq: int,
    op: str = "all_reduce",
    size: int = 8,
    *,
    out: int | None = None,
    dtype: str = "Float",
    group: str = "0",
    state: str = "completed",
    p2p: bool = False,
    at: int = 0,
) -> Raw:
    """A call as NCCL's recorder has it."""
    return {
        "process_group": [group, "default_pg" if group == "0" else "undefined"],
        "p2p_seq_id" if p2p else "collective_seq_id": seq,
        "profiling_name": f"nccl:{op}",
        "state": state,
        "retired": state == "completed",
        "is_p2p": p2p,
        "input_sizes": [[size]],
        "output_sizes": [[size if out is None else out]],
        "input_dtypes": [dtype],
        "output_dtypes": [dtype],
        "record_id": at,
        "time_created_ns": at,
    }


def trace(*entries: Raw, members: str = "[0, 1]") -> Raw:
    groups = {
        name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": members}
        for name in ("0", "1")
    }
    return {"version": "2.10", "pg_config": groups, "entries": list(entries)}


def history(dump: Raw, rank: int = 0) -> CallHistory:
    """As the journal hands it on."""
    payload = json.loads(json.dumps({"pid": 0, "answered": ["nccl"], "calls": call_ring.pack([dump])}))
    works, found = source.parse(Record(source.SOURCE, payload, rank=rank))
    assert isinstance(works, SourceWorks) and isinstance(found, CallHistory)
    return found


def whole(dump: Raw, rank: int = 0) -> FlightRecorder:
    """Every call that torch gave, uncut."""
    payload = {"pid": 0, "answered": ["nccl"], "traces": [dump]}
    *_, found = source.parse(Record(source.SOURCE, payload, rank=rank))
    assert isinstance(found, FlightRecorder)
    return found


def test_ring_of_two_thousand_calls_takes_a_kilobyte_and_says_of_each_what_it_was() -> None:
    entries = [
        raw(seq, "all_gather" if seq % 25 == 0 else "all_reduce", 8 + seq % 3) for seq in range(501, 2501)
    ]
    packed = call_ring.pack([trace(*entries)])

    (group,) = history(trace(*entries)).groups
    assert len(json.dumps(packed)) < 2000
    assert [(seq, group.kinds[kind].op, group.kinds[kind].input_sizes) for seq, kind in group.calls] == [
        (one["collective_seq_id"], one["profiling_name"][5:], ((one["input_sizes"][0][0],),))
        for one in entries
    ]
    assert (group.backend, group.name, group.members) == ("nccl", "0", (0, 1))


def test_one_mismatch_far_back_is_found_where_the_last_fifty_do_not_have_it() -> None:
    dumps = [
        trace(*(raw(seq, size=9 if (seq, rank) == (120, 1) else 8) for seq in range(1, 1500)))
        for rank in (0, 1)
    ]
    cut = {rank: recorder_of_file(dump, rank) for rank, dump in enumerate(dumps)}

    (found,), compared = passed_mismatches({rank: history(dump, rank) for rank, dump in enumerate(dumps)}, 2)
    assert (found.seq, [one.ranks for one in found.signatures], compared) == (120, [(0,), (1,)], 1499)
    assert passed_mismatches(cut, 2) == ([], 50)


def recorder_of_file(dump: Raw, rank: int) -> FlightRecorder:
    payload = source.load_file(json.dumps(dump).encode())
    *_, found = source.parse(Record(source.SOURCE, payload, rank=rank))
    assert isinstance(found, FlightRecorder)
    return found


def test_sends_and_receives_are_left_out() -> None:
    dump = trace(raw(1), raw(1, "send 0->1", p2p=True), raw(2))

    assert [seq for seq, _ in history(dump).groups[0].calls] == [1, 2]


@pytest.mark.parametrize(
    ("entries", "seconds"),
    [([], None), ([raw(1, at=5)], None), ([raw(1, at=10**9), raw(2, at=4 * 10**9)], 3.0)],
)
def test_time_that_a_ring_holds(entries: list[Raw], seconds: float | None) -> None:
    assert call_ring.ring_seconds([trace(*entries), {"entries": "?"}]) == seconds


def packed(numbers: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(numbers).encode())).decode()


KIND = ["all_reduce", [[8]], [[8]], ["Float"], False]
ROW = {"backend": "nccl", "group": "0", "desc": "", "ranks": "0-1", "kinds": [KIND], "calls": packed([1, 0])}


@pytest.mark.parametrize(
    "calls",
    [
        5,
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
        packed({}),
        packed([1]),
        packed([1, 7]),
        packed([1, -1]),
        packed([1, True]),
        packed([1.5, 0]),
        packed([1 << 70, 0]),
        base64.b64encode(zlib.compress(b"[" + b" " * (8 << 20) + b"]")).decode(),  # a bomb
    ],
)
def test_calls_that_nobody_packed_are_told_and_the_rest_is_read(calls: Any) -> None:
    payload = {"pid": 0, "calls": [{**ROW, "calls": calls}], "traces": [trace(raw(1))]}

    works, unparsed, found = source.parse(Record(source.SOURCE, payload, rank=0))
    assert (
        isinstance(works, SourceWorks)
        and isinstance(unparsed, Unparsed)
        and isinstance(found, FlightRecorder)
    )


def test_payload_of_before_without_all_calls_is_read_as_ever() -> None:
    works, found = source.parse(Record(source.SOURCE, {"pid": 0, "traces": [trace(raw(1))]}, rank=0))

    assert isinstance(works, SourceWorks) and isinstance(found, FlightRecorder)


# --- compact and whole say the same

OPS = (
    "all_reduce",
    "all_gather",
    "broadcast",
    "scatter",
    "barrier",
    "all_to_all",
    "all_to_allv",
    "_broadcast_oop",
    "coalesced",
)
one_call = st.builds(
    lambda op, size, out, dtype, state, group, p2p, step: (op, size, out, dtype, state, group, p2p, step),
    st.sampled_from(OPS),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from(["Float", "Half"]),
    st.sampled_from(["completed"] * 6 + ["scheduled", "started"]),
    st.sampled_from(["0", "0", "1"]),
    st.sampled_from([False] * 5 + [True]),
    st.sampled_from([1] * 9 + [0, 2, -3]),
)


@st.composite
def rings(draw: st.DrawFn) -> list[Raw]:
    """What one program called, on each rank with some calls of its own, and an end and a beginning of its own."""
    program = draw(st.lists(one_call, max_size=14))
    dumps = []
    for _ in range(draw(st.integers(2, 3))):
        own = draw(st.dictionaries(st.integers(0, 13), one_call, max_size=2))
        made = [own.get(number, call) for number, call in enumerate(program)]
        seqs: dict[tuple[str, bool], int] = {}
        entries = []
        for number, (op, size, out, dtype, state, group, p2p, step) in enumerate(made):
            seq = seqs[group, p2p] = max(1, seqs.get((group, p2p), 0) + step)
            entries.append(
                raw(seq, op, size, out=out, dtype=dtype, group=group, state=state, p2p=p2p, at=number + 1)
            )
        first, last = draw(st.integers(0, 3)), draw(st.integers(0, 2))
        dumps.append(entries[first : len(entries) - last])
    members = str(list(range(len(dumps))))
    return [trace(*entries, members=members) for entries in dumps]


@given(rings())
def test_compact_form_and_whole_dump_give_equal_verdicts(dumps: list[Raw]) -> None:
    compact = passed_mismatches({rank: history(dump, rank) for rank, dump in enumerate(dumps)}, len(dumps))

    assert compact == passed_mismatches(
        {rank: whole(dump, rank) for rank, dump in enumerate(dumps)}, len(dumps)
    )


def test_rings_that_are_made_up_have_mismatches_now_and_then() -> None:
    """Else the property above would say nothing."""
    from hypothesis import find

    found = find(
        rings(),
        lambda dumps: bool(
            passed_mismatches({rank: whole(dump, rank) for rank, dump in enumerate(dumps)}, len(dumps))[0]
        ),
    )
    assert found


def frame(function: str, line: int) -> Raw:
    return {"name": function, "filename": "/job/train.py", "line": line}


def test_lines_that_made_a_call_are_kept_of_each_way_to_it_and_cost_little() -> None:
    loss, norm = (
        [frame("step", 8), frame("main", 40)],
        [frame("log_norm", 3), frame("main", 44)],
    )  # innermost first
    entries = [{**raw(seq), "frames": norm if seq == 700 else loss} for seq in range(1, 2001)]
    (group,) = history(trace(*entries)).groups

    assert len(json.dumps(call_ring.pack([trace(*entries)]))) < 2000
    stacks = dict(
        zip((seq for seq, _ in group.calls), (group.stacks[kind] for _, kind in group.calls), strict=True)
    )
    assert [str(one) for one in stacks[699]] == ["main (/job/train.py:40)", "step (/job/train.py:8)"]
    assert [str(one) for one in stacks[700]] == ["main (/job/train.py:44)", "log_norm (/job/train.py:3)"]


def test_without_lines_a_history_says_so() -> None:
    (group,) = history(trace(raw(1), raw(2))).groups
    assert group.stacks == ()


@pytest.mark.parametrize("places", [[0, 7], [-1], ["0"], [0.0]])
def test_lines_that_are_not_in_the_table_make_no_history(places: list[Any]) -> None:
    (row,) = call_ring.pack([trace({**raw(1), "frames": [frame("main", 40)]})])
    row["kinds"][0][5] = places
    found = [*source.parse(Record(source.SOURCE, {"pid": 0, "answered": ["nccl"], "calls": [row]}, rank=0))]
    assert [type(one) for one in found] == [SourceWorks, Unparsed]
