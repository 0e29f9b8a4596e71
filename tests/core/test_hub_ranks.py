"""When the hub takes CMD's own process for the only rank: real processes, and no patience."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.agent.hub import Hub
from diag.launch.launchers.nodes import nodes_of
from diag.model import Record
from diag.settings import load

# A launcher that has a rank below it, or none, and says so when that stands.
_LAUNCHER = """
import os, subprocess, sys
child = None
if sys.argv[1] == "rank":
    env = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    child = subprocess.Popen([sys.executable, "-c", "print('here', flush=True); import sys; sys.stdin.read()"], env=env)
print(child.pid if child else 0, flush=True)
child.wait() if child else sys.stdin.read()
"""


@contextlib.contextmanager
def launcher(what: str) -> Iterator[tuple[int, int]]:
    """Its pid, and its rank's (0 for none)."""
    words = [sys.executable, "-c", _LAUNCHER, what]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = sorted(process.stdout.readline().strip() for _ in range(2 if what == "rank" else 1))
        yield process.pid, int(said[0])
    finally:
        process.stdin.close()
        process.wait(30)


def watched(pid: int, tmp_path: Path) -> tuple[Hub, list[str]]:
    """A hub that has seen a rank, and what it said."""
    said: list[str] = []
    hub = Hub(
        load(run_root=tmp_path).model_copy(update={"lone_process_seconds": 0.0}), None, talk=said.append
    )
    hub.watch_job(["launcher"], pid)
    end = time.monotonic() + 30
    hub.loop(lambda: bool(hub.engine.job.ranks) or time.monotonic() > end)
    hub.finish(None)
    return hub, said


def test_a_rank_of_the_first_scan_counts_however_late_that_scan_is(tmp_path: Path) -> None:
    with launcher("rank") as (pid, rank_pid):
        hub, said = watched(pid, tmp_path)

    assert hub.engine.job.ranks[0].placement.pid == rank_pid
    assert said == []


def test_a_command_without_ranks_is_watched_itself(tmp_path: Path) -> None:
    with launcher("none") as (pid, _):
        hub, said = watched(pid, tmp_path)

    assert hub.engine.job.ranks[0].placement.pid == pid
    assert len(said) == 1
    assert "no ranks found below CMD" in said[0]


# A script that starts each rank by itself, or one that a platform has numbered with its node.
_SCRIPT = """
import os, subprocess, sys
waits = "import os, sys; os.write(1, b'here\\\\n'); sys.stdin.read()"
envs = [{**os.environ, "WORLD_SIZE": "3", **({"RANK": str(rank)} if sys.argv[1] == "own" else {})} for rank in range(2)]
processes = [subprocess.Popen([sys.executable, "-c", waits], env=env) for env in envs]
[process.wait() for process in processes]
"""


@pytest.mark.parametrize(("whose", "ranks"), [("own", {0, 1}), ("node", {0})])
def test_ranks_without_local_rank_are_found_by_the_rank_that_was_set_for_each(
    tmp_path: Path, whose: str, ranks: set[int]
) -> None:
    env = {**os.environ, "RANK": "2"} if whose == "node" else os.environ
    words = [sys.executable, "-c", _SCRIPT, whose]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        hub, said = watched(parent.pid, tmp_path)
        parent.stdin.close()

    assert set(hub.engine.job.ranks) == ranks
    assert (hub.engine.job.world_size, len(said)) == ((3, 0) if whose == "own" else (1, 1))


# A script that numbers what it starts, and says how many there are by a name of its own.
_NUMBERED = """
import os, subprocess, sys
child = '''import mmap, os, sys
file = open(sys.argv[1], "rb")
seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.write(1, b"here\\\\n")
sys.stdin.read()
'''
envs = [{**os.environ, "WORLD": "3", "RANK": number} for number in sys.argv[2:]]
processes = [subprocess.Popen([sys.executable, "-c", child, sys.argv[1]], env=env) for env in envs]
[process.wait() for process in processes]
"""


@pytest.mark.parametrize(
    ("library", "numbers", "ranks"),
    [
        pytest.param("libtorch_cpu.so", "012", 3, id="all numbers from 0 on"),
        pytest.param("libtorch_cpu.so", "0", 1, id="one is no world"),
        pytest.param("libtorch_cpu.so", "13", 1, id="numbers of something else"),
        pytest.param("libtorch_cpu.so", "0011", 1, id="the same numbers twice"),
        pytest.param("libz.so", "012", 1, id="processes that load no torch"),
    ],
)
def test_processes_that_one_numbered_from_0_on_are_the_ranks_of_a_world(
    tmp_path: Path, library: str, numbers: str, ranks: int
) -> None:
    (tmp_path / library).write_bytes(b"x" * 4096)
    words = [sys.executable, "-c", _NUMBERED, str(tmp_path / library), *numbers]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert [parent.stdout.readline() for _ in numbers] == ["here\n"] * len(numbers)
        hub, said = watched(parent.pid, tmp_path)
        parent.stdin.close()

    assert set(hub.engine.job.ranks) == set(range(ranks))
    assert (hub.engine.job.world_size, len(said)) == ((3, 0) if ranks == 3 else (1, 1))


# As multiprocessing starts a child anew, with something of torch's name in its memory.
_SPAWNED = """
import subprocess, sys
child = '''from multiprocessing.spawn import spawn_main
import mmap, os, sys
file = open(sys.argv[1], "rb")
seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.write(1, b"here\\\\n")
sys.stdin.read()
'''
processes = [subprocess.Popen([sys.executable, "-c", child, *sys.argv[1:]]) for _ in range(2)]
[process.wait() for process in processes]
"""


@pytest.mark.parametrize(("library", "said"), [("libtorch_cpu.so", 1), ("libz.so", 0)])
@pytest.mark.parametrize("attached", [True, False])
def test_spawned_processes_that_may_be_ranks_are_not_checked_where_no_hook_is_in_them(
    tmp_path: Path, library: str, said: int, attached: bool
) -> None:
    (tmp_path / library).write_bytes(b"x" * 4096)
    words = [sys.executable, "-c", _SPAWNED, str(tmp_path / library)]
    settings = load(run_root=tmp_path).model_copy(update={"lone_process_seconds": 0.0})
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        hub = Hub(settings, None, talk=lambda text: None, attached=attached, stack_dir=tmp_path)
        hub.watch_job(["train"], parent.pid)
        end = time.monotonic() + 30
        hub.loop(lambda: bool(hub.engine.job.ranks) or time.monotonic() > end)
        hub.finish(None)
        parent.stdin.close()

    lines = [line for line in hub.engine.not_checked() if line.what == "ranks"]
    assert len(lines) == (said if attached else 0)
    assert all("2 processes below pid" in line.reason for line in lines)


def test_launcher_that_waits_for_other_nodes_is_no_rank(tmp_path: Path) -> None:
    """torchrun starts ranks when all nodes have come, which may take minutes."""
    said: list[str] = []
    settings = load(run_root=tmp_path).model_copy(update={"lone_process_seconds": 0.0})
    with launcher("none") as (pid, _):
        hub = Hub(settings, None, talk=said.append)
        hub.watch_job(["launcher"], pid)
        hub.cluster.join(
            nodes_of(
                ["torchrun", "--nnodes", "2", "--node_rank", "1", "--master_addr", "node0", "train.py"], {}
            )
        )
        end = time.monotonic() + 3  # a scan each second; without other nodes the first one takes it
        hub.loop(lambda: bool(hub.engine.job.ranks) or time.monotonic() > end)
        hub.finish(None)

    assert not hub.engine.job.ranks
    assert not any("no ranks found" in line for line in said)


def test_hub_that_did_not_run_for_a_while_says_so_before_what_came_meanwhile(tmp_path: Path) -> None:
    hub = Hub(load(run_root=tmp_path), None, talk=lambda text: None)
    lines = [[f" iteration {number:8}/     500 | lm loss: 1.0 |", False] for number in range(1, 10)]
    hub._take(0.0)
    hub.put(Record("output", {"stream": "stdout", "lines": lines[:2]}))
    hub._took_at -= 60.0  # SIGSTOP and SIGCONT, as the loop sees it
    hub._take(0.0)
    hub.put(Record("output", {"stream": "stdout", "lines": lines[2:]}))
    hub._take(0.0)

    assert hub.engine.job.iteration == 9 and not hub.engine.job.progress.step_seconds
    hub.finish(0)


def test_loop_ends_at_once_when_somebody_hurries_it(tmp_path: Path) -> None:
    # given a hub with nothing to do for a minute
    hub, over, asked = Hub(load(run_root=tmp_path), None), threading.Event(), []
    hub._next = {what: time.monotonic() + 60.0 for what in ("scan", "files", "second", "self")}

    def until() -> bool:
        asked.append(over.is_set())
        return over.is_set()

    looping = threading.Thread(target=hub.loop, args=(until,))
    looping.start()
    over.set()
    hub.hurry()
    looping.join(30.0)

    # then it has ended, and did not go round meanwhile
    assert not looping.is_alive()
    assert len(asked) <= 3
    hub.finish(None)


def test_loop_sleeps_until_the_next_thing_to_do(tmp_path: Path) -> None:
    hub = Hub(load(run_root=tmp_path), None)
    hub._next = {"files": time.monotonic() + 5.0, "second": time.monotonic() + 50.0}

    assert 3.0 < hub._until_due() <= 5.0
    hub._next["files"] = time.monotonic() - 5.0
    assert hub._until_due() == 0.0
    hub.finish(None)
