"""Ranks that have set their variables themselves, in a job that diag came to: by their memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.agent.rank_finder import RankFinder
from diag.sources.stacks.remote_stack.environ import live_environ

# It maps a file of such a name, as a process does that has loaded torch.
OWN = """
import mmap, os, sys
file = open(sys.argv[1], "rb") if len(sys.argv) > 1 else None
held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file else None
os.environ.update(RANK="3", LOCAL_RANK="1", WORLD_SIZE="8", MASTER_ADDR="10.0.0.1")
print("set", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libtorch_cpu.so"
    path.write_bytes(b"\0" * 4096)
    return path


@pytest.fixture
def process(library: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    args = [str(library)] if getattr(request, "param", True) else []
    plain = {name: value for name, value in os.environ.items() if "RANK" not in name}
    with subprocess.Popen(
        [sys.executable, "-c", OWN, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=plain,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def test_environment_of_now_has_what_the_process_has_set_since(process: subprocess.Popen[str]) -> None:
    now = live_environ(process.pid)

    assert now is not None
    assert (now["RANK"], now["MASTER_ADDR"], now["PATH"]) == ("3", "10.0.0.1", os.environ["PATH"])


def test_process_that_is_gone_has_none() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()

    assert live_environ(ended.pid) is None


def test_rank_that_set_its_variables_itself_is_found_where_no_hook_is(process: subprocess.Popen[str]) -> None:
    (found,) = RankFinder(process.pid, "host", unhooked=True).scan()

    place = found.placement
    assert (place.rank, place.local_rank, place.world_size, place.pid) == (3, 1, 8, process.pid)
    assert found.variables["MASTER_ADDR"] == "10.0.0.1"


def test_under_diag_run_the_hook_says_so_and_no_memory_is_read(process: subprocess.Popen[str]) -> None:
    assert RankFinder(process.pid, "host").scan() == []


@pytest.mark.parametrize("process", [False], indirect=True)
def test_process_without_torch_is_no_rank_by_what_it_has_set(process: subprocess.Popen[str]) -> None:
    assert RankFinder(process.pid, "host", unhooked=True).scan() == []
