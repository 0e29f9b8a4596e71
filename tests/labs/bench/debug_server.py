"""`diag dump --all-ranks` against PyTorch's own debug server (torch.distributed.debug, torch 2.13) and a
shell loop, in one job: as it trains, and with one rank that holds the GIL."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.liverun import DIAG, LiveRun

from . import debug_job, target
from .machine import PY_SPY, bench_env, ran
from .runs import NotReady, processes, under_diag, until
from .stats import interval
from .table import Row

__all__ = ["ranks_in", "rows"]

_RANKS = 8
_LIMIT = 20.0  # for its answer in a job that is stuck; its own is 60 s
_PYSPY_GOAL, _STACKS_GOAL = 1.0, 5.0
_PAGES = ("stacks", "pyspy_dump")
_ANSWER = re.compile(r"<h2>Rank (\d+):.*?</h2>(.*?)(?=<h2>Rank|</section>|\Z)", re.DOTALL)


def rows(count: int, limit: float, say: Callable[[str], None]) -> list[Row]:
    """`limit`: seconds that its answers are waited for in the stuck job."""
    for module in ("torch", "tabulate", "jinja2"):
        if importlib.util.find_spec(module) is None:
            raise NotReady(f"PyTorch's debug server: {module} is not installed")
    if importlib.util.find_spec("torch.distributed.debug") is None:
        raise NotReady("PyTorch's debug server: torch before 2.13 has none")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder, (port, store) = Path(name), _free_ports()
        path = f"{Path(PY_SPY).parent}{os.pathsep}{os.environ['PATH']}"  # its /pyspy_dump starts `py-spy`
        with under_diag(debug_job.command(_RANKS, folder, port, store), folder, PATH=path) as run:
            say(f"{_RANKS} torch ranks with PyTorch's debug server start")
            pids = list(until(lambda: target.complete(folder, _RANKS), 240, "all ranks train").values())
            until(lambda: _served(port), 120, "the debug server answers")
            until(lambda: _watched(run), 120, "each rank has its sidecar")
            time.sleep(8.0)  # every sidecar has taken its first stack
            say(f"diag dump and the debug server's pages, {count} times each")
            return [
                *_healthy(run, port, pids, count),
                *_held(run, folder, port, pids, min(limit, _LIMIT), say),
            ]


def _healthy(run: LiveRun, port: int, pids: list[int], count: int) -> list[Row]:
    dump, env = [*DIAG, "dump", "--all-ranks"], bench_env(DIAG_RUN_ROOT=str(run.root))
    loop = [
        "bash",
        "-c",
        f"for pid in {' '.join(map(str, pids))}; do {PY_SPY} dump --nonblocking --pid $pid; done",
    ]
    ran(dump, env)
    ours, shell, pages = [], [], {page: [] for page in _PAGES}  # type: ignore[var-annotated]
    for _ in range(count):
        ours.append(ran(dump, env).wall)
        shell.append(ran(loop).wall)
        for page in _PAGES:
            seconds, ranks = _asked(port, page, 60.0)
            if ranks != _RANKS:
                raise NotReady(f"PyTorch's debug server: /{page} has {ranks} of {_RANKS} ranks")
            pages[page].append(seconds)
    mine, looped = interval(ours), statistics.median(shell)
    found = []
    for page, goal in (("pyspy_dump", _PYSPY_GOAL), ("stacks", _STACKS_GOAL)):
        peer = statistics.median(pages[page])
        ratio = mine.scaled(1 / peer)
        found.append(
            Row(
                f"wall time of `diag dump --all-ranks`, {_RANKS} torch ranks, against PyTorch's debug server, /{page}",
                f"{1000 * mine.mid:.0f} ms [{1000 * mine.low:.0f}, {1000 * mine.high:.0f}]",
                f"/{page}, no process started: {1000 * peer:.0f} ms; shell loop of py-spy dump --nonblocking: {1000 * looped:.0f} ms",
                f"{ratio.mid:.2g} [{ratio.low:.2g}, {ratio.high:.2g}]",
                f"< {goal:g} x",
                "met" if ratio.high < goal else "missed" if ratio.low > goal else "unclear",
                {"diag": mine.mid, "peer": peer, "loop": looped, "ratio": ratio.mid},
                f"P8 {page}",
            )
        )
    return found


def _held(  # noqa: PLR0917 - one caller
    run: LiveRun, folder: Path, port: int, pids: list[int], limit: float, say: Callable[[str], None]
) -> list[Row]:
    (folder / "hold").touch()
    until((folder / "held").exists, 30, "a rank holds the GIL")
    time.sleep(1.0)
    say(f"the same with a rank that holds the GIL; the debug server is given {limit:g} s")
    env = bench_env(DIAG_RUN_ROOT=str(run.root))
    done = subprocess.run(
        [*DIAG, "dump", "--all-ranks", "--json"], env=env, stdout=subprocess.PIPE, check=False
    )
    probes = json.loads(done.stdout)["dump"]["probes"]
    ours = len({probe["rank"] for probe in probes if probe["probe"] == "stack" and probe["ok"]})
    wall = ran([*DIAG, "dump", "--all-ranks"], env).wall
    spies = [ran([PY_SPY, "dump", "--nonblocking", "--pid", str(pid)]) for pid in pids]
    answers: dict[str, tuple[float, int | None]] = {}
    threads = [
        threading.Thread(target=lambda page=page: answers.update({page: _asked(port, page, limit)}))
        for page in _PAGES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit + 10.0)
    told = "; ".join(
        f"/{page}: {f'no answer in {limit:g} s' if ranks is None else f'{ranks} of {_RANKS} ranks in {1000 * seconds:.0f} ms'}"
        for page in _PAGES
        for seconds, ranks in [answers.get(page, (limit, None))]
    )
    spied = sum(one.returncode == 0 for one in spies)
    return [Row(
        f"ranks with a stack in a dump where rank {debug_job.HELD_RANK} of {_RANKS} torch ranks holds the GIL",
        f"{ours} of {_RANKS} in {1000 * wall:.0f} ms",
        f"{told}; shell loop: {spied} of {_RANKS} in {1000 * sum(one.wall for one in spies):.0f} ms", goal=f"all {_RANKS}",
        verdict="met" if ours == _RANKS else "missed",
        values={"diag": wall, "ranks": ours, "loop_ranks": spied,
                **{f"{page}_ranks": -1 if answers.get(page, (0, None))[1] is None else answers[page][1] for page in _PAGES}},
        key="dump, GIL held")]  # fmt: skip


def ranks_in(page: str) -> int:
    """Ranks of which the server's page has a stack.

    >>> ranks_in("<h2>Rank 0: x</h2><pre>Thread 1</pre><h2>Rank 1: y</h2><p>Failed to fetch: status=408</p>")
    1
    """
    return sum("Failed to fetch" not in text and "hread" in text for _, text in _ANSWER.findall(page))


def _asked(port: int, page: str, limit: float) -> tuple[float, int | None]:
    """Seconds, and the ranks that the answer has; None where none came."""
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=limit) as answer:
            text = answer.read().decode("utf-8", "replace")
    except OSError:
        return time.perf_counter() - began, None
    return time.perf_counter() - began, ranks_in(text)


def _served(port: int) -> bool:
    return _asked(port, "stacks", 30.0)[1] == _RANKS


def _watched(run: LiveRun) -> bool:
    with contextlib.suppress(NotReady):
        return len(processes(run).sidecars) == _RANKS
    return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
