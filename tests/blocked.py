"""Processes that block for real, and what the reader of kernel waits makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diag.model import Record
from diag.model.observations.waits import ThreadWait, WaitsRead
from diag.sources.waits import SOURCE, WaitReader, parse
from diag.state.wait_chain import Chain, follow

Start = Callable[..., int]
LOOK = 0.1


@contextmanager
def starting() -> Iterator[Start]:
    """Start Python code that prints "ready" before it blocks; gives its pid."""
    children = []

    def started(code: str, *words: str, environment: dict[str, str] | None = None) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", f"def ready(): print('ready', flush=True)\n{code}", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
            env=environment,
        )
        children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child.pid

    yield started
    for child in children:
        os.killpg(child.pid, 9)
        child.wait()


def look(pid: int) -> WaitsRead:
    payload = json.loads(json.dumps(WaitReader(pid).sample(LOOK)))  # as the journal keeps it
    (read,) = parse(Record(SOURCE, payload, 0, "node", time.time()))
    return read


When = Callable[[WaitsRead, ThreadWait], bool]


def until(
    pid: int, kind: str, of: int = 0, tid: int = 0, when: When = lambda read, thread: True
) -> tuple[WaitsRead, ThreadWait]:
    """Looks again until the thread waits so: a process that said "ready" may not be there yet, nor the others."""
    deadline = time.monotonic() + 20
    while True:
        read = look(pid)
        process = read.process(of or pid)
        thread = process.thread(tid) if process is not None else None
        if (
            thread is not None
            and thread.wait.kind == kind
            and (thread.same or kind in ("running", "stopped"))
            and when(read, thread)
        ):
            return read, thread
        assert time.monotonic() < deadline, thread


def chain(read: WaitsRead, pid: int, tid: int = 0) -> Chain:
    found = follow(read, pid, tid)
    assert found is not None
    return found
