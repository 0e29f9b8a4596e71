"""Flight Recorder: real dumps, live gloo jobs over the hook's socket, and files of strangers."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.launch.inject import environment
from diag.model import Record
from diag.model.observations import (
    CallHistory,
    FlightRecorder,
    Observation,
    SourceFailed,
    SourceWorks,
    Unparsed,
)
from diag.sources.collectives import flight_recorder as source
from diag.state.wait_graph import build

FOLDER = Path(__file__).parents[1] / "captures" / "fr"


def parsed(payload: Any, rank: int = 0) -> list[Observation]:
    return list(source.parse(Record(source.SOURCE, payload, rank=rank, at=5.0)))


def recorder(payload: Any, rank: int = 0) -> FlightRecorder:
    assert "failed" not in payload, payload
    works, *_, found = parsed(payload, rank)
    assert isinstance(works, SourceWorks) and isinstance(found, FlightRecorder)
    return found


# --- files
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["data_hang_0", "data_hang_1", "mismatch_op_1", "rank_killed_0", "skip_collective_0"]
)
def test_pickle_and_json_of_one_moment_say_the_same(name: str) -> None:
    whole, ended = (
        recorder(source.load_file(FOLDER / name)),
        recorder(source.load_file(FOLDER / f"{name}.json")),
    )
    assert whole.entries[-len(ended.entries) :] == ended.entries
    assert (whole.groups, whole.backends, whole.version) == (ended.groups, ended.backends, ended.version)


def test_waiting_rank_of_a_real_hang() -> None:
    found = recorder(source.load_file(FOLDER / "data_hang_0"))
    (group,) = found.groups
    assert (group.name, group.desc, group.members, group.last_enqueued, group.last_completed) == (
        "0",
        "default_pg",
        (0, 1),
        29,
        25,
    )
    pending = [entry for entry in found.entries if entry.pending]
    assert [(entry.seq, entry.op, entry.state) for entry in pending][:2] == [
        (26, "all_reduce", "started"),
        (27, "all_reduce", "scheduled"),
    ]
    assert pending[0].input_sizes == ((2048, 512),) and pending[0].dtypes == ("Float", "Float")


def test_only_the_batch_that_waits_is_pending_though_all_parts_stay_scheduled() -> None:
    dumps = {rank: recorder(source.load_file(FOLDER / f"batch_p2p_{rank}.json"), rank) for rank in (0, 1)}
    assert [(entry.op, entry.seq) for entry in dumps[0].entries if entry.pending] == [
        ("send 0->1", 3),
        ("recv 0<-1", 3),
        ("coalesced", 3),
    ]
    assert not [entry for entry in dumps[1].entries if entry.pending]
    found = build(dumps).explain()
    assert (found.kind, found.culprits, set(found.waiting)) == ("absent_rank", (1,), {0})


def test_rank_is_the_last_number_of_the_name() -> None:
    names = ("fr_trace_3", "comm_lib_trace_rank_12", "fr_trace_0.json", "notes.txt")
    assert [source.rank_of(Path(name)) for name in names] == [3, 12, 0, None]


def test_long_record_is_cut_to_the_last_of_each_group_and_all_that_is_pending() -> None:
    entries = [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": seq,
            "profiling_name": "nccl:all_reduce",
            "state": "scheduled" if seq in (3, 2000) else "completed",
            "retired": seq != 3,
            "record_id": seq,
            "is_p2p": False,
            "pg_id": 0,
            "frames": [{"name": "x" * 500}],
        }
        for seq in range(1, 2001)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(16384)))}}
    payload = source.load_file(
        json.dumps({"version": "2.10", "entries": entries, "pg_config": config}).encode()
    )
    found = recorder(payload)
    assert [entry.seq for entry in found.entries] == [3, *range(1951, 2001)]
    # NCCL retires what timed out, too
    assert [entry.seq for entry in found.entries if entry.pending] == [3, 2000]
    assert found.groups[0].members == tuple(range(16384))
    assert len(json.dumps(payload)) < 25_000


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/diag-was-here",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"entries": [Evil()]}),
        pickle.dumps(Evil(), protocol=0),
        pickle.dumps(FlightRecorder),
        pickle.dumps({"entries": {frozenset()}}),
        pickle.dumps({(1, 2): 3}),
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02Nr\xff\xff\xff\xff.",
        b"\x80\x05\x96\x00\x00\x00\x00\xff\x00\x00\x00.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x02(" + b"\x85" * 100 + b".",
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
        b"[" * 100_000,
        b"{" * 100_000,
        b"[]",
        b"",
        b"text",
        b'{"entries": ' + b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:24]),
)
def test_hostile_file_is_refused_with_a_word(data: bytes) -> None:
    assert source.load_file(data)["failed"] == "failed"
    assert not Path("/tmp/diag-was-here").exists()


def test_pickle_that_went_through_a_text_tool_is_told_as_such() -> None:
    data = (FOLDER / "data_hang_0").read_bytes().decode("utf-8", "replace").encode()
    assert "saved as text" in source.load_file(data)["detail"]


def test_too_large_a_file_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "fr_trace_0"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    assert source.load_file(large)["failed"] == "too_large"
    assert source.load_file(tmp_path / "absent")["failed"] == "failed"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
words = (
    "process_group",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "state",
    "retired",
    "is_p2p",
    "record_id",
    "pg_id",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "time_created_ns",
)
entry_like = st.dictionaries(
    st.sampled_from(words), json_values | st.just("nccl:coalesced") | st.just([["4"], -1])
)
trace_like = st.fixed_dictionaries(
    {},
    optional={
        "entries": st.lists(entry_like | json_values, max_size=5) | json_values,
        "pg_config": st.dictionaries(
            st.text(max_size=2),
            json_values
            | st.fixed_dictionaries({"name": json_values, "ranks": json_values | st.just("[0, 9999999]")}),
            max_size=3,
        )
        | json_values,
        "pg_status": st.dictionaries(st.text(max_size=2), json_values, max_size=3) | json_values,
        "version": json_values,
    },
)


@given(
    json_values
    | st.fixed_dictionaries(
        {"pid": st.just(1), "traces": json_values | st.lists(trace_like)},
        optional={"answered": json_values, "failed": json_values, "calls": json_values},
    )
)
def test_any_payload_is_parsed_or_said_to_be_none(payload: Any) -> None:
    for fact in parsed(payload):
        assert isinstance(fact, (CallHistory, FlightRecorder, SourceWorks, SourceFailed, Unparsed))


@given(trace_like)
def test_any_trace_of_a_file_gives_a_payload_that_says_the_same(trace: dict[str, Any]) -> None:
    payload = source.load_file(json.dumps(trace).encode())
    assert (
        recorder(json.loads(json.dumps(payload))).entries == recorder({"pid": 0, "traces": [trace]}).entries
    )


# --- live: four ranks of gloo under the hook
# ---------------------------------------------------------------------

JOB = """
import os, sys, time
import torch, torch.distributed as dist
scenario, rank, folder = sys.argv[1], int(os.environ["RANK"]), os.environ["DIAG_RUN_DIR"]
dist.init_process_group("gloo")
even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
mine, tensor = (even, odd)[rank % 2], torch.ones(4)
dist.all_reduce(tensor, group=mine)
dist.all_reduce(tensor)
os.close(os.open(f"{folder}/ready.{rank}", os.O_CREAT))
if scenario == "absent":
    if rank == 2:
        time.sleep(600)
    dist.all_reduce(tensor, group=mine)
    dist.all_reduce(tensor)
elif scenario == "order":  # 0 and 2 in their group first, then the world; 2 the other way round
    calls = [lambda: dist.all_reduce(tensor, group=mine), lambda: dist.all_reduce(tensor)]
    for call in calls if rank != 2 else calls[::-1]:
        call()
elif scenario == "mismatch":
    dist.broadcast(tensor, 0) if rank == 1 else dist.all_reduce(tensor)
    dist.all_reduce(tensor)
time.sleep(600)
"""


@contextlib.contextmanager
def gloo_job(scenario: str, run_dir: Path) -> Iterator[dict[int, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DIAG_", "TORCH_"))}
    env |= environment(run_dir, os.getpid(), env)
    env |= {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, scenario], env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(4)
    ]
    try:
        end = time.monotonic() + 90
        while len(list(run_dir.glob("ready.*"))) < 4:
            assert time.monotonic() < end and all(rank.poll() is None for rank in ranks)
            time.sleep(0.05)
        yield {rank: process.pid for rank, process in enumerate(ranks)}
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("scenario", "kind", "culprits"),
    [("absent", "absent_rank", (2,)), ("order", "order_cycle", (0, 2)), ("mismatch", "mismatch", (1,))],
)
@pytest.mark.live
def test_live_gloo_job_is_explained(
    scenario: str, kind: str, culprits: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("torch")
    run_dir = tmp_path_factory.mktemp("fr")  # short: a socket's path has 107 bytes
    with gloo_job(scenario, run_dir) as pids:
        end = time.monotonic() + 30
        while True:
            took = time.monotonic()
            payloads = {rank: source.read(rank, pid, run_dir, 3.0) for rank, pid in pids.items()}
            took = time.monotonic() - took
            found = build(
                {rank: recorder(payload, rank) for rank, payload in payloads.items()}, world_size=4
            ).explain()
            if (found.kind, found.culprits) == (kind, culprits) or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert (found.kind, found.culprits) == (kind, culprits), found
        assert took < 3.0
        if scenario == "absent":
            assert {rank: (wait.op, wait.desc) for rank, wait in found.waiting.items()} == {
                0: ("all_reduce", "group 1 of ranks 0, 2"),
                1: ("all_reduce", "default_pg"),
                3: ("all_reduce", "default_pg"),
            }


def test_rank_without_a_socket_and_one_whose_server_died(tmp_path: Path) -> None:
    (failed,) = parsed(source.read(0, 1, tmp_path))
    assert (
        isinstance(failed, SourceFailed)
        and "not opened a worker server" in failed.reason
        and "--no-inject" in failed.remedy
    )
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "w.1.sock"))
    gone = source.read(0, 1, tmp_path)
    assert gone["failed"] == "gone" and not parsed(gone)


def test_server_that_says_nothing_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "w.1.sock"))
        silent.listen()
        began = time.monotonic()
        assert source.read(0, 1, tmp_path, 0.3)["failed"] == "timed_out"
        assert time.monotonic() - began < 2.0
