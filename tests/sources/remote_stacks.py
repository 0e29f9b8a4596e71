"""Interpreters and processes to read the Python stacks of, and what reading them gives."""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diag.model import Record
from diag.model.observations import Observation, StackSample
from diag.sources.host.proc import ProcessReader
from diag.sources.stacks import pyspy, remote_stack
from tests.inject.targets import plain_env, run_python

needs_pyspy = pytest.mark.skipif(pyspy.find_executable() is None, reason="py-spy is not installed")


KNOWN = ((3, 11), (3, 12), (3, 13))


# Generators, C calls that call back, comprehensions, properties, a coroutine, a lambda, names beyond ASCII, a
# deep stack.
ZOO = """
import asyncio, functools, sys, threading
waits = threading.Event()
up = threading.Semaphore(0)
def wait():
    up.release()
    waits.wait()
def inner():
    wait()
    yield 1
def outer():
    yield from inner()
class Größe:
    @property
    def method(self):
        return [x for x in outer()]
    def __exit__(self, *error): wait()
    def __enter__(self): return self
def by_sort():
    sorted([2, 1], key=functools.cmp_to_key(lambda a, b: wait()))
def in_with():
    with Größe():
        pass
async def main(): await other()
async def other(): wait()
def deep(n):
    return deep(n - 1) if n else wait()
works = {"gen-thréad": lambda: Größe().method, "线程": by_sort, "with": in_with, "loop": lambda: asyncio.run(main()),
         "deep": lambda: deep(400)}
for name, work in works.items():
    threading.Thread(target=work, name=name, daemon=True).start()
threading.Thread(target=by_sort, daemon=True).start()
for _ in range(6): up.acquire()
print("ready", flush=True)
sys.stdin.read()
"""


@functools.cache
def pythons() -> dict[str, str]:
    """Interpreters here that the reader knows, by version: ours, those on PATH, those of pyenv, the system's."""
    places = [sys.executable, "/usr/bin/python3", *(f"python3.{minor}" for _, minor in KNOWN)]
    places += [str(path) for path in Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3")]
    found: dict[str, str] = {}
    for place in places:
        try:
            free = "bool(sysconfig.get_config_var('Py_GIL_DISABLED'))"
            code = f"import sys, sysconfig; print(sys.version.split()[0], {free}, sys.executable)"
            shown = run_python(code, plain_env(), python=place)
        except OSError:
            continue
        if shown.returncode == 0:
            version, free, path = shown.stdout.split(maxsplit=2)
            if tuple(map(int, version.split(".")[:2])) in KNOWN and free == "False":
                found.setdefault(version, path.strip())
    return found


each_python = pytest.mark.parametrize("python", pythons().values(), ids=pythons().keys())


def parsed(payload: Any) -> list[Observation]:
    return list(remote_stack.parse(Record(remote_stack.SOURCE, payload, rank=0, at=5.0)))


def sample(payload: Any) -> StackSample:
    assert "threads" in payload, payload
    [found] = [fact for fact in parsed(payload) if isinstance(fact, StackSample)]
    return found


def by_pyspy(pid: int) -> StackSample:
    facts = pyspy.parse(Record(pyspy.SOURCE, pyspy.PySpy().dump(pid, 20.0), rank=0, at=5.0))
    return next(fact for fact in facts if isinstance(fact, StackSample))


def face(found: StackSample) -> dict[int, Any]:
    return {thread.thread_id: (thread.name, thread.owns_gil, thread.frames) for thread in found.threads}


def functions(payload: Any) -> list[str]:
    main = sample(payload).main
    assert main is not None
    return [frame.function for frame in main.frames]


def until_asleep(*pids: int) -> None:
    """All threads of these sleep, and did nothing between two looks: what stands still can be compared."""
    end, before = time.monotonic() + 60, None
    while time.monotonic() < end:
        stats = [
            path.read_text().rpartition(")")[2].split()
            for pid in pids
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
        now = [(stat[0], stat[11], stat[12]) for stat in stats]
        switches = [
            line
            for pid in pids
            for path in Path(f"/proc/{pid}/task").glob("*/status")
            for line in path.read_text().splitlines()
            if "ctxt" in line
        ]
        if all(state in "ST" for state, *_ in now) and (now, switches) == before:
            return
        before = (now, switches)
        time.sleep(0.05)
    raise AssertionError(f"never asleep: {pids}")


def children_of(pid: int) -> list[int]:
    payload = ProcessReader(pid).sample(detail=True)
    return [int(child["stat"].partition(" ")[0]) for child in payload["children"]]
