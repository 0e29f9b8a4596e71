"""Tasks of asyncio in another process's memory: real interpreters, chains of coroutines, and loops that run."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pytest

from diag.agent.samplers.rank_variables import choose
from diag.model import Record
from diag.model.observations import VariablesRead
from diag.sources.stacks import variables
from diag.sources.stacks.remote_stack import RemoteStacks
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import each_python

CODE = """
import asyncio
class Client:
    def __init__(self): self.slots = asyncio.Semaphore(1)
    async def call(self):
        await self.slots.acquire()
class Later:
    def __await__(self): return (yield from asyncio.get_running_loop().create_future())
async def numbers():
    await asyncio.Event().wait()
    yield 1
async def over():
    async for number in numbers(): pass
async def later(): await Later()
async def ends(): pass
async def fails(): raise ValueError("row 805, hf_abcdefghijklmnopqrstuvwxyz0123")
async def cancelled(): await asyncio.Event().wait()
async def looks():
    while True: await asyncio.sleep(0.001)
async def main():
    client = Client()
    others = [asyncio.create_task(one()) for one in (over, later, ends, fails, cancelled)]
    waits = [client.call() for _ in range(4)]
    await asyncio.sleep(0.05)
    others[-1].cancel()
    await asyncio.sleep(0.05)
    SOON
    for _ in range(6): asyncio.create_task(asyncio.sleep(0.1))  # of which the set keeps the places
    await asyncio.gather(*waits)
asyncio.run(main())
"""
SOON = "asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_later(0.4, lambda: print('ready', flush=True)))"


def read(pid: int) -> Any:
    with contextlib.closing(RemoteStacks()) as stacks:
        payload = stacks.variables(pid, choose, variables.REDACT, 20.0)
    json.dumps(payload)
    return payload


def program(code: str) -> str:
    return f"exec(compile({code!r}, '/srv/job/train.py', 'exec'))"


@each_python
def test_each_task_is_read_with_the_coroutines_that_it_awaits(python: str) -> None:
    with Target(program(CODE.replace("SOON", SOON)), plain_env(), python=python) as rank:
        payload = read(rank.pid)

    [fact] = [
        one for one in variables.parse(Record(variables.SOURCE, payload, 1)) if isinstance(one, VariablesRead)
    ]
    there = [one for one in fact.tasks if one.frames]
    paths = sorted((tuple(one.function for one in task.frames), task.awaits) for task in there)
    assert paths == [
        (("Client.call", "Semaphore.acquire"), "future"),
        (("Client.call", "Semaphore.acquire"), "future"),
        (("Client.call", "Semaphore.acquire"), "future"),
        (("later", "Later.__await__"), "future"),
        (("main",), "tasks"),
        (("over", "numbers", "Event.wait"), "future"),
    ]
    assert all(task.frames[0].file == "/srv/job/train.py" and task.frames[0].line > 1 for task in there)
    assert [(one.name, one.error) for one in fact.tasks if not one.frames] == [
        ("fails", "<ValueError: row 805, ***>")
    ]
    assert fact.tasks_left_out == 0


def test_process_without_an_event_loop_has_none() -> None:
    code = "import asyncio, sys; print('ready', flush=True); sys.stdin.read()"
    with Target(program(code), plain_env(), python=sys.executable) as rank:
        assert "tasks" not in read(rank.pid)


def test_loop_whose_tasks_run_on_is_read_without_harm() -> None:
    busy = CODE.replace("SOON", f"{SOON}; more = [asyncio.create_task(looks()) for _ in range(100)]")
    with Target(program(busy), plain_env(), python=sys.executable) as rank:
        seen = [read(rank.pid) for _ in range(50)]

    assert all("threads" in one for one in seen)
    counts = {len(one.get("tasks", ())) + one.get("tasks_left_out", 0) for one in seen}
    assert max(counts) >= 90 and max(len(one.get("tasks", ())) for one in seen) <= 64


@pytest.mark.parametrize("rows", [[{"frames": [["f", "a.py"]], "awaits": ""}], [7]])
def test_damaged_tasks_are_no_tasks(rows: Any) -> None:
    payload = {"pid": 1, "threads": [], "tasks": rows}

    assert not any(
        isinstance(one, VariablesRead) for one in variables.parse(Record(variables.SOURCE, payload, 1))
    )
