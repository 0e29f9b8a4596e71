"""The hub's flame graphs: one of a rank at a time, none after the hub has ended, and the server's loop is
never held."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from diag.agent.flames import FlameRecorder
from diag.model import Placement
from diag.outputs.view.view import FlameWanted
from diag.text.errors import DiagError

BUSY = "def busy_function():\n  print('ready', flush=True)\n  while True: sum(range(1000))\nbusy_function()"


@pytest.fixture
def place() -> Iterator[Placement]:
    process = psutil.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield Placement(3, 3, 8, "node-0", process.pid)
    process.kill()
    process.wait()


def test_second_graph_of_the_same_rank_is_refused_while_the_first_is_made(place: Placement) -> None:
    recorder = FlameRecorder()
    wanted = FlameWanted(seconds=1.0, rate=20, form="collapsed")
    ticks = 0

    async def both() -> list[bytes | BaseException]:
        nonlocal ticks
        task = asyncio.gather(
            recorder.record(place, wanted), recorder.record(place, wanted), return_exceptions=True
        )
        while not task.done():
            await asyncio.sleep(0.05)
            ticks += 1
        return await task

    first, second = asyncio.run(both())

    assert isinstance(first, bytes) and b"busy_function" in first
    assert isinstance(second, DiagError) and "rank 3 is being recorded already" in str(second)
    assert ticks > 5  # the loop went on meanwhile
    assert b"busy_function" in asyncio.run(recorder.record(place, wanted))  # and the next one is made


def test_hub_that_ends_does_not_wait_for_a_graph(place: Placement) -> None:
    recorder = FlameRecorder()

    async def closed() -> None:
        task = asyncio.ensure_future(recorder.record(place, FlameWanted(seconds=300.0)))
        while not [child for child in psutil.Process().children() if "py-spy" in child.name()]:
            await asyncio.sleep(0.02)
        recorder.close()
        await task

    began = time.monotonic()
    with pytest.raises(DiagError, match="the run ended"):
        asyncio.run(closed())

    assert time.monotonic() - began < 30
    assert not [child for child in psutil.Process().children() if "py-spy" in child.name()]
