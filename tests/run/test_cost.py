"""What relaying costs: printed (pytest -s), not judged, for a busy machine would fail it."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Driven, until

from diag.launch import output_file, relay

Start = Callable[..., Driven]


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond (schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def test_idle_cpu_and_memory(drive: Start, capsys: pytest.CaptureFixture[str]) -> None:
    # given a silent job
    driven = drive(["sh", "-c", "echo up; exec sleep 60"], "--read")
    assert driven.process.stdout is not None and driven.process.stdout.readline() == b"up\n"
    time.sleep(1.5)  # the relay counts as active for a second
    # when diag is watched for 3 seconds
    pids = (driven.process.pid, driven.witness_pid)
    before, began = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(3)
    after, took = [cpu_s(pid) for pid in pids], time.monotonic() - began
    shares = [(b - a) / took for a, b in zip(before, after, strict=True)]
    pss = [
        next(
            line.split()[1]
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )
        for pid in pids
    ]
    with capsys.disabled():
        print(
            f"\nidle: relay {shares[0]:.3%} of a core, witness {shares[1]:.3%}; Pss {pss[0]} kB, witness {pss[1]} kB"
        )


def test_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a relay to a pipe
    read, write = os.pipe()
    lane = output_file.open_output_file(tmp_path / "log")
    relayed = relay.Relay([relay.Sink("stdout", lane, write)], on_output=lambda *_: None)
    relayed.start()
    # when lines come one by one
    delays = []
    for i in range(60):
        time.sleep(0.003 * (i % 10))
        began = time.monotonic()
        os.write(lane.write_fd, b"line\n")
        os.read(read, 100)
        delays.append(1000 * (time.monotonic() - began))
    with capsys.disabled():
        print(f"\nlatency: median {statistics.median(delays):.1f} ms, most {max(delays):.1f} ms")
    assert relayed.drain(10)


@pytest.mark.parametrize("observed", [False, True], ids=["relay alone", "with an observer"])
def test_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str], observed: bool) -> None:
    # given 256 MiB that the job has written, and a reader as quick as can be
    null = os.open(os.devnull, os.O_WRONLY)
    lane = output_file.open_output_file(tmp_path / "log")
    line = b"x" * 99 + b"\n"
    for _ in range(256):
        os.write(lane.write_fd, line * 10486)
    seen = [0]

    def observe(stream: str, data: bytes, offset: int) -> None:
        seen[0] += len(data)

    # when they are relayed
    began, cpu = time.monotonic(), time.process_time()
    relayed = relay.Relay([relay.Sink("stdout", lane, null)], on_output=observe if observed else None)
    relayed.start()
    assert relayed.drain(60)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    size = lane.size()
    # then all of it was
    assert lane.relayed == size
    assert seen[0] == (size if observed else 0)
    with capsys.disabled():
        print(f"\nthroughput: {size / took / 1e6:.0f} MB/s, CPU {cpu / size * 1e9:.2f} s/GB")
    lane.close()
    os.close(null)


def test_cost_of_a_talkative_job(tmp_path: Path, drive: Start, capsys: pytest.CaptureFixture[str]) -> None:
    # given a job that writes 200 lines a second (a bar on each of a few ranks) until it is told to end
    stop = tmp_path / "stop"
    script = f"import os, time\nwhile not os.path.exists({str(stop)!r}): os.write(1, b'x' * 120 + b'\\r'); time.sleep(0.005)"
    with open(os.devnull, "wb") as null:
        driven = drive([sys.executable, "-c", script], "--read", stdout=null)
        pid = driven.process.pid
        until(lambda: driven.cmd_pid, "it runs")
        before, began = cpu_s(pid), time.monotonic()
        time.sleep(2)
        share = (cpu_s(pid) - before) / (time.monotonic() - began)
        stop.touch()
        assert driven.process.wait(20) == 0
    with capsys.disabled():
        print(f"\n200 lines a second: {share:.2%} of a core")
