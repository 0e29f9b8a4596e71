"""Looks at the Flight Recorder while the job moves: when, at whom, and when not."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers import rank_suspicion
from diag.agent.samplers.rank_context import RankContext
from diag.agent.samplers.rank_suspicion import CollectivesSampler, look_seconds, next_look
from diag.agent.samplers.sampler import Reporter
from diag.launch.runs import start_ticks
from diag.model import Record
from diag.sources.collectives import flight_recorder
from tests.sources.test_call_ring import raw, trace


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A rank's worker server, with NCCL's recorder in it."""

    daemon_threads = True

    def __init__(self, path: Path, entries: int = 60) -> None:
        self.asked: list[str] = []
        self.mute = threading.Event()  # set: it takes a question and says nothing
        self.over = threading.Event()
        self.body = json.dumps(trace(*(raw(seq, at=seq * 10**9) for seq in range(1, entries + 1)))).encode()
        super().__init__(str(path), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def address_string(self) -> str:
        return ""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b'["ping", "dump_nccl_trace_json"]')

    def do_POST(self) -> None:
        self._answer(self.server.body)

    def _answer(self, body: bytes) -> None:
        self.server.asked.append(self.path)
        if self.server.mute.is_set():
            self.server.over.wait(10)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as path:  # a socket's path has 107 bytes
        yield Path(path)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder / f"w.{os.getpid()}.sock")
    yield server
    server.close()


def sampler(folder: Path, records: list[Record], pid: int | None = None) -> CollectivesSampler:
    pid = pid or os.getpid()
    task = {"rank": 0, "pid": pid, "start_ticks": start_ticks(pid), "run_dir": str(folder)}
    task |= {"stack_seconds": 5, "close_stack_seconds": 2, "proc_seconds": 5, "node_seconds": 5}
    found = CollectivesSampler(RankContext(task, Reporter(records.append)))
    found._look_at = 0.0  # due now
    return found


def looks(records: list[Record]) -> list[Record]:
    return [one for one in records if one.source == flight_recorder.SOURCE]


def test_rank_whose_server_listens_is_looked_at_while_the_job_moves(folder: Path, server: Server) -> None:
    records: list[Record] = []
    one = sampler(folder, records)
    one.sample()

    (look,) = looks(records)
    assert "traces" not in look.payload and look.payload["ring_seconds"] == 59.0
    assert look.payload["calls"][0]["backend"] == "nccl"
    # the question is told first: the rank's memory that it takes is no progress
    assert records[0].payload == {"event": "asked"}
    one.sample()  # the next one is not due
    assert len(looks(records)) == 1 and 0 < one.period(0.0, 0.0) <= one._look_seconds


def test_rank_without_a_server_is_not_asked_through_its_pipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "pipe_of", lambda *_: folder / "pipe")
    monkeypatch.setattr(
        flight_recorder, "ask_pipe", lambda *_: pytest.fail("each is a line in the job's log")
    )
    records: list[Record] = []
    one = sampler(folder, records)
    one.sample()

    assert one.is_there and records == []


def test_suspected_rank_is_asked_and_not_looked_at(folder: Path, server: Server) -> None:
    records: list[Record] = []
    one = sampler(folder, records)
    one.rank.closer = True
    one.sample()

    (asked,) = looks(records)
    assert asked.payload["traces"] and asked.payload["calls"]


def test_server_that_does_not_answer_a_look_gets_no_other(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_suspicion, "_ANSWER_SECONDS", 0.2)
    server.mute.set()
    records: list[Record] = []
    one = sampler(folder, records)
    one.sample()
    one._look_at = 0.0
    one.sample()

    assert len(server.asked) == 1 and looks(records) == []
    assert "did not answer in time" in json.dumps(records[-1].payload)


def test_stopped_rank_is_not_looked_at(folder: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    server = Server(folder / f"w.{rank.pid}.sock")
    try:
        os.waitpid(rank.pid, os.WUNTRACED)
        records: list[Record] = []
        sampler(folder, records, rank.pid).sample()
        assert server.asked == [] and records == []
    finally:
        server.close()
        rank.kill()
        rank.wait()


@pytest.mark.parametrize(
    ("took", "ring", "seconds"),
    [
        (0.005, None, 16),  # a ring with nothing in it yet
        (0.005, 10, 16),  # it turns faster than it may be read
        (0.005, 100, 64),  # 80 s would do
        (0.09, 10, 128),
        (0.09, 100_000, 512),  # a mismatch is told within minutes
        (3.0, 10, 4096),
    ],
)
def test_time_to_the_next_look_is_what_it_costs_and_what_the_ring_holds(
    took: float, ring: float | None, seconds: float
) -> None:
    assert look_seconds(took, ring) == seconds
    assert took / look_seconds(took, ring) <= 0.001


def test_looks_of_a_ring_that_turns_fast_are_close_at_first_and_cost_a_thousandth_of_a_core_on_average(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 calls in 20 s; a look takes 80 ms."""
    now = [1000.0]
    monkeypatch.setattr(rank_suspicion.time, "time", lambda: now[0])
    monkeypatch.setattr(rank_suspicion.time, "monotonic", lambda: now[0])

    def look(*_: Any) -> dict[str, Any]:
        now[0] += 0.08
        return {"pid": 1, "answered": ["nccl"], "calls": [], "ring_seconds": 20.0}

    monkeypatch.setattr(flight_recorder, "look", look)
    records: list[Record] = []
    one = sampler(folder, records)
    at = []
    while now[0] < 1000.0 + 4 * 3600:
        before = len(looks(records))
        one.sample()
        if len(looks(records)) > before:
            at.append(now[0])
        now[0] += one.period(0.0, 0.0) + 0.001

    assert at[5] - at[0] < 6 * 16  # none of the first minute and a half goes unseen
    assert 0.0005 < 0.08 * len(at) / (4 * 3600) < 0.001


def test_ranks_whose_looks_cost_unlike_much_and_vary_have_each_look_of_the_dearer_one_in_common(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gloo ranks on two shared cores: 40 to 63 ms, and 70 to 120 ms."""
    times: list[set[float]] = []
    for costs in ([0.04, 0.063, 0.05], [0.12, 0.07, 0.1, 0.09]):
        (folder / f"w.{os.getpid()}.sock").touch()
        now, made = [1000.0], iter(costs * 1000)
        monkeypatch.setattr(rank_suspicion.time, "time", lambda now=now: now[0])
        monkeypatch.setattr(rank_suspicion.time, "monotonic", lambda now=now: now[0])

        def look(*_: Any, now: list[float] = now, made: Iterator[float] = made) -> dict[str, Any]:
            now[0] += next(made)
            return {"pid": 1, "answered": ["nccl"], "calls": [], "ring_seconds": 20.0}

        monkeypatch.setattr(flight_recorder, "look", look)
        records: list[Record] = []
        one = sampler(folder, records)
        one._look_at = next_look(now[0], 16.0)
        seen = set()
        while now[0] < 1000.0 + 4 * 3600:
            before = len(looks(records))
            begun = now[0]
            one.sample()
            if len(looks(records)) > before:
                seen.add(begun // 1)
            now[0] += one.period(0.0, 0.0) + 0.001
        times.append(seen)

    cheap, dear = times
    assert len(dear) > 100 and len(dear & cheap) > 0.95 * len(dear)


def test_ranks_look_at_the_same_time_whenever_they_were_started() -> None:
    assert {next_look(1000.0 + start, 64.0) for start in (24, 25.5, 87)} == {1088.0}
    # and of one that looks each 64 s each second one is with one that looks each 128 s
    assert next_look(next_look(1030.0, 64.0), 64.0) == next_look(1030.0, 128.0)


def test_looks_go_on_by_themselves(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_suspicion, "_FIRST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(rank_suspicion, "_LONGEST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(rank_suspicion, "_LOOK_RATIO", 10.0)
    records: list[Record] = []
    one = sampler(folder, records)
    one.start()
    try:
        end = time.monotonic() + 20
        while len(looks(records)) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        one.rank.end()
        assert one.thread is not None
        one.thread.join(5)
