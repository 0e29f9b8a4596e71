"""The reader of Python stacks in another process's memory: memory that lies, interpreters that nobody knows, and what
its readings are parsed to."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model.observations import Observation, SourceFailed, SourceWorks, Unparsed
from diag.sources.stacks import remote_stack
from diag.sources.stacks.remote_stack import memory
from diag.sources.stacks.remote_stack.image import Unsupported
from diag.sources.stacks.remote_stack.layouts import layout_of, published
from diag.sources.stacks.remote_stack.lines import line_of
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import (
    ZOO,
    each_python,
    parsed,
)


@each_python
def test_torn_memory_never_raises_loops_or_takes_long(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a real process, and reads of it of which each hundredth is changed at random or cut off
    chance = random.Random(7)
    real = os.pread

    def torn(fd: int, size: int, at: int) -> bytes:
        data = bytearray(real(fd, size, at))
        if data and chance.random() < 0.01:
            for _ in range(chance.choice([1, 4])):
                place, width = chance.randrange(len(data)), chance.choice([1, 8])
                data[place : place + width] = chance.choice(
                    [chance.randbytes(width), b"\0" * width, b"\xff" * width]
                )
        if chance.random() < 0.005:
            del data[chance.randrange(len(data) + 1) :]
        return bytes(data)

    with Target(ZOO, plain_env(), python=python) as rank:
        monkeypatch.setattr(memory.os, "pread", torn)
        found: Counter[str] = Counter()
        for _ in range(150):
            stacks, began = remote_stack.RemoteStacks(), time.monotonic()
            for _ in range(2):
                payload = stacks.dump(rank.pid, 1.0)
                assert all(not isinstance(fact, Unparsed) for fact in parsed(payload))
                found[payload.get("failed", "read")] += 1
            assert time.monotonic() - began < 5.0
            stacks.close()
    # then every reading is a stack or a word for why not
    assert set(found) <= {"read", *remote_stack.FAILURES}
    assert found["read"] > 150 and len(found) > 1


def test_reading_is_bounded_in_calls_bytes_and_time() -> None:
    own = memory.Memory(os.getpid())
    own.begin(1.0)
    kept = b"x" * 4096
    place = id(kept) + 32
    with pytest.raises(memory.Torn, match="more than a process can have"):
        for _ in range(100_000):
            own.read(place, 4096)
    own.begin(0.0)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            own.read(place, 8)
    for address in (0, -8, 1 << 63, 1 << 70):
        with pytest.raises(memory.Torn):
            own.begin(1.0)
            own.read(address, 8)
    own.close()


@pytest.mark.parametrize(
    "head", [b"", b"xdebugpy", b"xdebugpy" + b"\xff" * 576, b"xdebugpy" + b"\0" * 576, b"\0" * 584]
)
def test_offsets_of_an_interpreter_that_is_not_known_are_refused(head: bytes) -> None:
    with pytest.raises(Unsupported):
        published(head)


@pytest.mark.parametrize("version", [0x030A0DF0, 0x030E00F0, 0x030B00A1, 0x020B00F0, 0])
def test_versions_that_are_not_known_are_refused(version: int) -> None:
    with pytest.raises(Unsupported):
        layout_of(version)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="location tables came with Python 3.11")
def test_lines_are_those_that_the_interpreter_itself_tells() -> None:
    checked = 0
    for module in (subprocess, random, functools):
        todo = [compile(Path(str(module.__file__)).read_text(), "module", "exec")]
        while todo:
            code = todo.pop()
            todo += [const for const in code.co_consts if isinstance(const, type(code))]
            for start, end, line in code.co_lines():
                told = code.co_firstlineno if line is None else line
                for at in range(start, end, 2):
                    assert line_of(code.co_linetable, code.co_firstlineno, at // 2) == told
                    checked += 1
    assert checked > 5000


@given(st.binary(max_size=300), st.integers(-(2**31), 2**31), st.integers(-10, 10**6))
def test_location_table_of_garbage_gives_a_number(table: bytes, first: int, at: int) -> None:
    assert isinstance(line_of(table, first, at), int)


KEYS = st.sampled_from(
    ["pid", "codes", "threads", "failed", "id", "name", "frames", "owns_gil", "detail", "parent_pid"]
)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(
    JSON
    | st.builds(lambda codes, thread: {"pid": 1, "codes": codes, "threads": [thread]}, JSON, JSON)
    | st.builds(
        lambda frames: {
            "pid": 1,
            "codes": [["f", "a.py"]],
            "threads": [{"id": 1, "name": "", "owns_gil": False, "frames": frames}],
        },
        JSON | st.lists(st.integers()),
    )
    | st.builds(lambda inner: {"pid": 1, "failed": inner}, JSON)
)
def test_garbage_is_unparsed_and_never_raises(payload: Any) -> None:
    assert all(isinstance(fact, Observation) for fact in parsed(payload))


def test_stack_withdraws_what_py_spy_could_not_do() -> None:
    thread = {"id": 1, "name": "MainThread", "owns_gil": False, "frames": [0, 7]}
    facts = parsed({"pid": 1, "codes": [["main", "a.py"]], "threads": [thread]})
    assert {fact.source for fact in facts if isinstance(fact, SourceWorks)} == {"remote_stack", "pyspy"}


def test_process_that_the_kernel_holds_up_is_told_and_a_child_is_not() -> None:
    held = {
        "pid": 1,
        "failed": "timed_out",
        "detail": "an earlier reading of it has not come back from the kernel",
    }
    [failed] = parsed(held)
    assert isinstance(failed, SourceFailed) and "took too long" in failed.reason
    assert parsed(held | {"parent_pid": 7}) == [] == parsed({"pid": 1, "failed": "gone"})
