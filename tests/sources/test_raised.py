"""Exceptions in another process's memory: that which a thread handles, those that objects keep, and where each was raised."""

from __future__ import annotations

import time
from typing import Any

from diag.model import Record
from diag.model.observations import Raised, VariablesRead
from diag.sources.stacks import variables
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import each_python
from tests.sources.test_variables import read, running

FAILS = """
class Saver:
    def __init__(self):
        self.error = self.fine = None
    def write(self, name):
        open(name)
    def work(self, name):
        try: self.write(name)
        except Exception as error: self.error = error
saver = Saver()
saver.work('/srv/job/step-100.pt')
"""


def facts(body: str, python: str) -> tuple[VariablesRead, Any]:
    with Target(running(body), plain_env(), python=python) as rank:
        payload = read(rank.pid)
    _works, fact = variables.parse(Record(variables.SOURCE, payload, 1))
    assert isinstance(fact, VariablesRead)
    return fact, payload


def kept(fact: VariablesRead) -> list[Raised]:
    return [one for frame in fact.frames if frame.function == "waits" for one in frame.raised]


@each_python
def test_exception_that_an_object_keeps_has_its_text_and_the_lines_that_it_came_through(python: str) -> None:
    fact, _ = facts(FAILS, python)

    (found,) = [one for one in kept(fact) if one.name == "saver.error"]
    assert found.error == "FileNotFoundError: [Errno 2] No such file or directory: '/srv/job/step-100.pt'"
    assert [frame.function.rpartition(".")[2] for frame in found.frames] == ["work", "write"]
    assert all(frame.file.endswith("/srv/job/train.py") for frame in found.frames)
    assert found.frames[1].line < found.frames[0].line and fact.handled == ()


@each_python
def test_exception_in_whose_handler_a_thread_waits_is_that_of_this_thread(python: str) -> None:
    body = "try: {}['module.0.weight']\nexcept KeyError:\n    print('ready', flush=True); sys.stdin.read()"
    fact, _ = facts(body, python)

    ((thread, found),) = fact.handled
    assert found.error == "KeyError: module.0.weight" and thread == fact.frames[0].thread_id
    assert [frame.function for frame in found.frames] == ["waits"]


@each_python
def test_exception_of_a_future_in_a_list_is_found(python: str) -> None:
    body = (
        "import concurrent.futures as cf\n"
        "pool = cf.ThreadPoolExecutor(1)\n"
        "results = [pool.submit(int, '7'), pool.submit(int, 'seven')]\n"
        "cf.wait(results); others = [1, 'a', None]"
    )
    fact, _ = facts(body, python)

    (found,) = kept(fact)
    assert found.name == "results[1]._exception" and found.error.startswith("ValueError: invalid literal")


@each_python
def test_secret_in_the_text_of_an_exception_is_hidden(python: str) -> None:
    body = FAILS.replace("step-100.pt", "hf_abcdefghijklmnopqrstuvwxyz0123456789")
    fact, payload = facts(body, python)

    (found,) = [one for one in kept(fact) if one.name == "saver.error"]
    assert "abcdefghijklmnop" not in repr(payload) and "FileNotFoundError" in found.error


@each_python
def test_process_without_exceptions_has_none(python: str) -> None:
    body = "try: {}['a']\nexcept KeyError: pass\nrows = [object(), object()]\nnumber = 3"
    fact, payload = facts(body, python)

    assert kept(fact) == [] and fact.handled == () and "raised" not in repr(payload)


def test_row_that_is_torn_is_unparsed() -> None:
    row = {
        "function": "f",
        "file": "/a.py",
        "line": 3,
        "called": False,
        "values": [],
        "raised": [{"name": "e"}],
    }
    payload = {"pid": 7, "threads": [{"id": 7, "name": "MainThread", "frames": [row]}]}
    found = list(variables.parse(Record(variables.SOURCE, payload, 1)))

    assert not any(isinstance(one, VariablesRead) for one in found)


@each_python
def test_task_that_failed_has_the_lines_that_raised_its_exception(python: str) -> None:
    code = (
        "import asyncio\n"
        "async def load(): raise ValueError('row 805')\n"
        "async def produce(): await load()\n"
        "async def main():\n"
        "    task = asyncio.create_task(produce()); await asyncio.sleep(0.01)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    text = f"exec(compile({code!r}, '/srv/job/train.py', 'exec'))"
    with Target(text, plain_env(), python=python) as rank:
        fact = None
        until = time.monotonic() + 20.0
        while not (fact and fact.tasks) and time.monotonic() < until:
            facts_of = variables.parse(Record(variables.SOURCE, read(rank.pid), 1))
            fact = next(one for one in facts_of if isinstance(one, VariablesRead))

    assert fact is not None
    (failed,) = [one for one in fact.tasks if one.error]
    assert failed.name == "produce" and failed.error == "<ValueError: row 805>"
    assert [frame.function for frame in failed.raised] == ["produce", "load"]
