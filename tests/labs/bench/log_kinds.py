"""`python -m tests.labs.bench.log_kinds [MB]`: what one kind of line costs, replayed and relayed by `diag run`, and
how many lines were left out."""

from __future__ import annotations

import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from diag.engine.journal import JournalReader, segments
from diag.sources.logs.output import SOURCE
from tests.liverun import DIAG

from .captured import captured_lines, healthy_nccl_lines
from .machine import bench_env

__all__ = ["KINDS", "main", "written"]

_TOTAL = 10**7  # steps of the training


def _numbers(seed: int = 1) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield draw.random()


def _swift() -> Iterator[str]:
    for step, loss, speed in zip(itertools.count(1), _numbers(), _numbers(2), strict=False):
        yield (
            f"{{'loss': {2 + loss / 5:.4f}, 'grad_norm': {1 + loss / 10:.8f}, 'learning_rate': 9.9e-05, 'epoch': {step / 1000:.2f}, "
            f"'global_step/max_steps': '{step}/{_TOTAL}', 'percentage': '{100 * step / _TOTAL:.2f}%', 'elapsed_time': "
            f"'{step // 60}m {step % 60}s', 'remaining_time': '3h 2m 1s', 'memory(GiB)': 21.62, 'train_speed(iter/s)': {speed:.6f}}}"
        )


def _transformers() -> Iterator[str]:
    for step, loss in zip(itertools.count(1), _numbers(), strict=False):
        rate = 1e-4 * (1 - step / _TOTAL)
        yield (
            f"{{'loss': {2 + loss / 5:.4f}, 'grad_norm': {1 + loss / 10:.8f}, 'learning_rate': {rate:.16g}, "
            f"'epoch': {step / 1000:.2f}}}"
        )


def _megatron() -> Iterator[str]:
    for step, loss in zip(itertools.count(1), _numbers(), strict=False):
        yield (
            f" [2026-11-21 {_clock(step)}] iteration {step:8d}/{_TOTAL:8d} | consumed samples: {step * 256:12d} | elapsed time per "
            f"iteration (ms): {1000 + 9 * loss:.1f} | learning rate: 1.000000E-05 | global batch size:   256 | lm loss: "
            f"{2 + loss / 5:.6E} | loss scale: 1.0 | grad norm: {1 + loss / 10:.3f} | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |"
        )


def _nccl() -> Iterator[str]:
    yield from itertools.cycle(healthy_nccl_lines())


def _chatter() -> Iterator[str]:
    for row in itertools.count(1):
        yield (
            f"2026-11-21 {_clock(row // 10)} - INFO - data.loader - worker {row % 8} fetched batch {row * 7} of shard {row % 200}"
        )


def _bars() -> Iterator[str]:
    for step, speed in zip(itertools.count(1), _numbers(), strict=False):
        done = step * 10 // 10**6
        yield f"\r{step // 10**4:3d}%|{'█' * done:10s}| {step}/{10**6} [{step // 60:02d}:{step % 60:02d}<3:02:01,  {3 + speed:.2f}it/s]"


def _mixture() -> Iterator[str]:
    """Of 86 lines one of a step, 20 of NCCL, 60 of a data loader and 5 bars."""
    yield from (line for line in captured_lines()[:2000] if "rror" not in line)
    steps, others = _megatron(), ((_nccl(), 20), (_chatter(), 60), (_bars(), 5))
    while True:
        yield next(steps)
        for lines, count in others:
            yield from itertools.islice(lines, count)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "transformers": _transformers,
    "ms-swift": _swift,
    "megatron": _megatron,
    "nccl": _nccl,
    "bars": _bars,
    "chatter": _chatter,
    "mixture": _mixture,
}


def written(kind: str, size: int) -> Iterator[bytes]:
    """Lines of this kind, at least `size` bytes."""
    made = 0
    for line in KINDS[kind]():
        data = f"{line}\n".encode()
        yield data
        made += len(data)
        if made >= size:
            return


def _cpu(command: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _dropped(runs: Path) -> int:
    """Lines of the only run below it that were left out of the analysis."""
    (home,) = (path.parent for path in runs.rglob("journal-000001.jsonl.gz"))
    records = JournalReader(segments(home))
    return sum(record.payload.get("dropped", 0) for record in records if record.source == SOURCE)


def main(megabytes: float = 10.0) -> None:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        empty = folder / "empty.log"
        empty.write_text("ready\n")
        env = {**bench_env(), "XDG_STATE_HOME": str(folder / "none")}
        replay = min(_cpu([*DIAG, "replay", "--json", str(empty)], env) for _ in range(3))
        run = min(_cpu([*DIAG, "run", "--", "true"], env) for _ in range(3))
        print(f"CPU of the start: replay {replay:.2f} s, run {run:.2f} s; load {os.getloadavg()[0]:.1f}")
        print(
            "| lines | replay, MB a second of CPU | run, MB a second of CPU | lines left out |\n|---|---|---|---|"
        )
        for kind in KINDS:
            path = folder / f"{kind}.log"
            with path.open("wb") as file:
                file.writelines(written(kind, int(megabytes * 1e6)))
            size = path.stat().st_size / 1e6
            read = _cpu([*DIAG, "replay", "--json", str(path)], env) - replay
            state = folder / kind
            relayed = (
                _cpu([*DIAG, "run", "--", "cat", str(path)], {**env, "XDG_STATE_HOME": str(state)}) - run
            )
            print(
                f"| {kind} | {size / max(read, 0.01):.1f} | {size / max(relayed, 0.01):.1f} | {_dropped(state):,} |",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
