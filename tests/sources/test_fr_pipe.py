"""The dump pipe: a process that does what PyTorch's heartbeat monitor does, and others that do not."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import FlightRecorder
from diag.sources.collectives import flight_recorder as source
from diag.sources.collectives import fr_pipe

DUMP = Path(__file__).parents[1] / "captures" / "fr" / "data_hang_0"
# As ProcessGroupNCCL of torch 2.11: mkfifo 0666, opened for reading without waiting, looked into now and
# then.
MONITOR = """
import os, sys, time
pipe, dump, source, how = sys.argv[1:]
os.mkfifo(pipe, 0o666)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while True:
    time.sleep(0.05)
    try:
        asked = os.read(fd, 100)
    except BlockingIOError:
        asked = b""
    if asked and how != "stuck":
        data = open(source, "rb").read()
        time.sleep(1.0 if how == "slow" else 0)
        with open(dump, "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            time.sleep(0.02)
            file.write(data[len(data) // 2 :])
"""


@contextlib.contextmanager
def monitor(folder: Path, how: str = "well", **extra: str) -> Iterator[int]:
    env = {fr_pipe.PIPE: f"{folder}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/fr_", **extra}
    argv = [sys.executable, "-c", MONITOR, f"{folder}/pipe_0.pipe", f"{folder}/fr_0", str(DUMP), how]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def test_rank_without_a_socket_is_asked_through_the_pipe(tmp_path: Path) -> None:
    with monitor(tmp_path) as pid:
        for _ in range(2):  # the second answer is another file, not the first once more
            payload = source.read(0, pid, tmp_path, 10.0)
            facts = list(source.parse(Record(source.SOURCE, payload, rank=0)))

            found = next(fact for fact in facts if isinstance(fact, FlightRecorder))
            assert payload["how"] == "pipe" and found.pid == pid
            assert next(entry.seq for entry in found.entries if entry.pending) == 26
            assert found.backends == ("nccl",)


def test_monitor_that_is_stuck_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "fr_0").write_bytes(DUMP.read_bytes())  # of an earlier timeout: it is not taken for an answer
    with monitor(tmp_path, "stuck") as pid:
        began = time.monotonic()
        payload = source.read(0, pid, tmp_path, 0.5)

        assert payload["failed"] == "timed_out" and time.monotonic() - began < 2.0


def test_pipe_is_given_longer_than_a_server(tmp_path: Path) -> None:
    with monitor(tmp_path, "slow") as pid:
        assert source.reachable(0, pid, tmp_path) and not source.reachable(1, pid, tmp_path)
        assert source.read(0, pid, tmp_path, 0.2)["failed"] == "timed_out"
        assert source.read(0, pid, tmp_path, 0.2, pipe_deadline=10.0)["how"] == "pipe"


def test_pipe_without_a_reader_is_said(tmp_path: Path) -> None:
    with monitor(tmp_path) as pid:
        (tmp_path / "pipe_0.pipe").rename(tmp_path / "gone")
        assert source.read(0, pid, tmp_path, 1.0)["failed"] == "no_socket"
        (tmp_path / "pipe_0.pipe").symlink_to(tmp_path / "gone")
        assert source.read(0, pid, tmp_path, 1.0)["failed"] == "failed"


@pytest.mark.parametrize("name", [fr_pipe.PIPE, "TORCH_FR_DUMP_TEMP_FILE"])
def test_rank_without_the_variables_has_no_pipe(tmp_path: Path, name: str) -> None:
    with monitor(tmp_path, **{name: ""}) as pid:
        payload = source.read(0, pid, tmp_path, 1.0)

        assert payload["failed"] == "no_socket" and name in payload["detail"]


def test_ended_rank_has_no_pipe(tmp_path: Path) -> None:
    with monitor(tmp_path) as pid:
        pass

    assert source.read(0, pid, tmp_path, 1.0)["failed"] == "no_socket"
