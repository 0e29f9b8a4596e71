"""When the hub takes CMD's own process for the only rank: real processes, and no patience."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
