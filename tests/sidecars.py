"""A real sidecar process for tests, and a rank for it to read."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.model import Record
from diag.model.observations import StackSample
from diag.sources.parsers import PARSERS
from diag.sources.stacks import pyspy

ROOT = Path(__file__).parents[1]
needs_pyspy = pytest.mark.skipif(pyspy.find_executable() is None, reason="py-spy is not installed")
# What reads a process of the Python that runs the tests.
STACKS = "remote_stack" if (3, 11) <= sys.version_info < (3, 14) else "pyspy"
# A rank with a child that stands in a function of its own, as a DataLoader worker does.
RANK = """
import os, sys
def reads_a_shard():
    r, w = os.pipe()
    os.read(r, 1)
if os.fork() == 0:
    os.close(0)
    reads_a_shard()
def waits_for_a_batch():
    sys.stdin.read()
print("up", flush=True)
waits_for_a_batch()
"""


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@contextlib.contextmanager
def running_rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


class Sidecar:
    """The process, and what it sends as a queue."""

    def __init__(self, pid: int, **task: Any) -> None:
        settings = {
            "run_dir": None,
            "stack_signal": 0,
            "stack_seconds": 60.0,
            "close_stack_seconds": 0.5,
            "proc_seconds": 0.2,
            "node_seconds": 0.5,
        }
        whole = {"rank": 3, "pid": pid, **settings, **task}
        if "start_ticks" not in whole:
            whole["start_ticks"] = ticks(pid)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "diag.agent.sidecar", json.dumps(whole)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        self.sent: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.seen: list[dict[str, Any]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.sent.put(json.loads(line))
        self.sent.put(None)

    def order(self, line: bytes | dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
        self.process.stdin.flush()

    def until(self, condition: Callable[[dict[str, Any]], Any], timeout: float = 20.0) -> dict[str, Any]:
        """The next message that the condition holds for."""
        end = time.monotonic() + timeout
        while True:
            message = self.sent.get(timeout=max(0.01, end - time.monotonic()))
            assert message is not None, f"the sidecar ended; it had sent {self.seen[-5:]}"
            self.seen.append(message)
            if condition(message):
                return message

    def source(self, name: str) -> dict[str, Any]:
        return self.until(lambda message: message.get("source") == name)

    def end(self) -> None:
        self.process.kill()
        self.reader.join(10.0)  # it reads to the end; the pipe may not be closed below it
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


def task_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    times = {"stack_seconds": 60, "close_stack_seconds": 2, "proc_seconds": 2, "node_seconds": 5}
    return {"rank": 3, "pid": process.pid, "start_ticks": ticks(process.pid), **times}


@contextlib.contextmanager
def beside(process: subprocess.Popen[bytes], **task: Any) -> Iterator[Sidecar]:
    sidecar = Sidecar(process.pid, **task)
    try:
        yield sidecar
    finally:
        sidecar.end()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        os.sched_yield()


def functions(message: dict[str, Any]) -> list[str]:
    found = PARSERS[message["source"]](Record.from_json(message))
    [sample] = [fact for fact in found if isinstance(fact, StackSample)]
    return [frame.function for thread in sample.threads for frame in thread.frames]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def probes_of(done: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["probe"]: row for row in done["probes"]}
