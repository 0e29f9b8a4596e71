"""A training loop without torch to measure on: `python -m tests.labs.bench.target --ranks N --folder DIR ...`.

Each step is a fixed amount of interpreted work; each rank notes its steps in DIR/steps-RANK.txt as they end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from .stats import Step

__all__ = ["DEEP", "Recorder", "calibrate", "command", "complete", "pids", "read_steps"]

_DEPTH = 20  # frames below the loop, about what a training step has
DEEP = _DEPTH + 1  # of them are in each stack


class Recorder:
    """Notes the time from one lap to the next, whole lines at a time: the reader may come any moment."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = open(folder / f"steps-{rank}.txt", "w", buffering=1)  # noqa: SIM115 - open while the process lives
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._last: tuple[float, float, float, float] | None = None
        (folder / f"pid-{rank}.new").write_text(str(os.getpid()))
        (folder / f"pid-{rank}.new").rename(folder / f"pid-{rank}")

    def lap(self) -> None:
        waited = int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9
        now = (time.time(), time.perf_counter(), time.process_time(), waited)
        if self._last is not None:
            start, *before = self._last
            wall, cpu, wait = (b - a for a, b in zip(before, now[1:], strict=True))
            self._file.write(f"{start:.6f} {wall:.7f} {cpu:.7f} {wait:.7f}\n")
        self._last = now


def read_steps(folder: Path, rank: int = 0) -> list[Step]:
    lines = (folder / f"steps-{rank}.txt").read_text().splitlines(keepends=True)
    return [Step(*map(float, line.split())) for line in lines if line.endswith("\n")]


def pids(folder: Path) -> dict[int, int]:
    """Rank -> pid, of the ranks that began their steps."""
    return {
        int(path.name[4:]): int(path.read_text()) for path in folder.glob("pid-*") if path.suffix != ".new"
    }


def complete(folder: Path, ranks: int) -> dict[int, int]:
    """The same once all are there, else nothing."""
    found = pids(folder)
    return found if len(found) == ranks else {}


def _spin(count: int) -> int:
    total = 0
    for i in range(count):
        total += i & 7
    return total


def calibrate(seconds: float) -> int:
    """Rounds of work that take about so long on this machine when it is quiet."""
    best = min(_timed(100_000) for _ in range(20))
    return max(1, int(100_000 * seconds / best))


def _timed(count: int) -> float:
    began = time.perf_counter()
    _spin(count)
    return time.perf_counter() - began


def command(
    folder: Path,
    *,
    ranks: int,
    spins: int,
    rest: float = 0.0,
    threads: int = 0,
    core: int = -1,
    calls: int = 0,
    modules: bool = False,
    stop_file: Path | None = None,
) -> list[str]:
    """`modules`: steps of calls that go up and down; `stop_file`: once it is there no rank makes a step any
    more."""
    more = [*(["--modules"] if modules else []), *(["--stop-file", str(stop_file)] if stop_file else [])]
    return [
        sys.executable,
        "-m",
        "tests.labs.bench.target",
        "--folder",
        str(folder),
        "--ranks",
        str(ranks),
        "--spins",
        str(spins),
        "--rest",
        str(rest),
        "--threads",
        str(threads),
        "--core",
        str(core),
        "--calls",
        str(calls),
        *more,
    ]


def _modules(count: int) -> int:
    """Calls as of nested modules: the stack is another one each microsecond."""
    return sum(_forward(number % 12) for number in range(count // 20))


def _forward(depth: int) -> int:
    return _forward(depth - 1) + 1 if depth else 0


def _deep(depth: int, work: object) -> None:
    if depth:
        _deep(depth - 1, work)
    elif callable(work):
        work()


def waits_for_the_others() -> None:
    time.sleep(3600)


def _collectives(folder: Path, count: int) -> None:
    """So many gloo all_reduces, alone in the world: what torch's Flight Recorder keeps. Before the steps, not
    in them: a step must not wait for threads on other cores."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    tensor = torch.ones(256)
    for _ in range(count):
        dist.all_reduce(tensor)


def _rank(options: argparse.Namespace, rank: int) -> None:
    for _ in range(options.threads):  # idle ones, as a rank has: autograd, loaders, watchdogs
        threading.Thread(target=_deep, args=(_DEPTH, threading.Event().wait), daemon=True).start()
    if options.calls:
        _collectives(options.folder, options.calls)
    # of this thread alone: torch's server has the other cores, as it has beside a real rank
    if options.core >= 0:
        os.sched_setaffinity(0, {options.core})
    recorder = Recorder(options.folder, rank)
    work = _modules if options.modules else _spin

    def train() -> None:
        said, number = 0.0, 0
        while True:
            recorder.lap()
            work(options.spins)
            if options.stop_file is not None and options.stop_file.exists():
                waits_for_the_others()
            if options.rest:
                time.sleep(options.rest)
            number += 1
            # a Megatron line a second: diag sees the job move
            if rank == 0 and time.monotonic() - said >= 1.0:
                said = time.monotonic()
                print(f" iteration {number:8d}/{10**7:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)

    _deep(_DEPTH, train)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.bench.target", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--spins", type=int, required=True, help="work of a step")
    parser.add_argument("--rest", type=float, default=0.0, help="sleep this long in each step")
    parser.add_argument("--threads", type=int, default=0, help="idle Python threads in each rank")
    parser.add_argument("--core", type=int, default=-1, help="run on this core only")
    parser.add_argument(
        "--calls", type=int, default=0, help="collectives before the first step (torch, one rank)"
    )
    parser.add_argument("--modules", action="store_true", help="steps of nested calls instead of one loop")
    parser.add_argument("--stop-file", type=Path, help="once this file is there no further step is made")
    options = parser.parse_args()
    if "RANK" in os.environ:
        _rank(options, int(os.environ["RANK"]))
        return 0
    world = {"WORLD_SIZE": str(options.ranks), "LOCAL_WORLD_SIZE": str(options.ranks)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.labs.bench.target", *sys.argv[1:]],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(options.ranks)
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
