"""The real job with and without diag: whole runs in pairs on the same GPUs, and diag on and off within one
run."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.labs.bench import target
from tests.labs.bench.runs import NotReady, alone, processes, under_diag, until
from tests.labs.bench.slowdown import switch, within
from tests.labs.bench.stats import ratios

from .drill import RUN, environment, keep_evidence

__all__ = ["paired"]

_IN_RANKS = Path(__file__).parent / "in_ranks"
_WARM_UP_STEPS = 20
_START_SECONDS = 180.0
_LAST_WORDS_SECONDS = 10.0  # for diag to see why, after a process of it was gone
_SWITCHED_PAIRS, _BLOCK_SECONDS = 10, 2.0


def paired(  # noqa: PLR0917 - one caller, the command line
    slots: int,
    steps: int,
    rounds: int,
    keep: Path,
    say: Callable[[str], None],
    blocks_each: int = _SWITCHED_PAIRS,
) -> dict[str, Any]:
    """On each pair of GPUs runs alone and under diag take turns; neighbours run the other way at the same
    time. At the end of each run under diag it is stopped and continued in `blocks_each` pairs of blocks."""
    lock, measured = threading.Lock(), []
    found: dict[str, Any] = {"pairs": [], "switched": []}

    def one(slot: int, number: int, with_diag: bool) -> None:
        gpus = [2 * slot, 2 * slot + 1]
        kept = keep / f"overhead-{slot}-{number}"
        walls, blocks = _run(gpus, 29800 + 10 * slot + number, steps, with_diag, kept, blocks_each)
        with lock:
            measured.append((slot, number // 2, with_diag, walls))
            if with_diag:
                found["switched"].append({"gpus": gpus, **blocks})
            # Whatever ends this early: what was measured is kept.
            (keep / "overhead-runs.json").write_text(
                json.dumps({"runs": measured, "switched": found["switched"]})
            )
            how = "under diag" if with_diag else "alone"
            say(f"GPUs {gpus} {how}: {len(walls)} steps, median {statistics.median(walls):.4f} s")

    for number in range(2 * rounds):
        with ThreadPoolExecutor(max_workers=slots) as pool:
            for future in [pool.submit(one, slot, number, (number + slot) % 2 == 0) for slot in range(slots)]:
                future.result()
    for slot in range(slots):
        for number in range(rounds):
            walls = {diag: w for s, n, diag, w in measured if (s, n) == (slot, number)}
            medians = {"alone": statistics.median(walls[False]), "diag": statistics.median(walls[True])}
            found["pairs"].append(
                {
                    "gpus": [2 * slot, 2 * slot + 1],
                    "round": number + 1,
                    "steps": steps,
                    **medians,
                    "ratio": medians["diag"] / medians["alone"],
                    "walls": {"alone": walls[False], "diag": walls[True]},
                }
            )
    ratio = ratios([pair["diag"] for pair in found["pairs"]], [pair["alone"] for pair in found["pairs"]])
    found["ratio"] = {"low": ratio.low, "mid": ratio.mid, "high": ratio.high}
    return found


def _run(  # noqa: PLR0917 - one caller, above
    gpus: Sequence[int],
    port: int,
    steps: int,
    with_diag: bool,
    kept: Path,
    blocks_each: int = _SWITCHED_PAIRS,
) -> tuple[list[float], dict[str, Any]]:
    """Seconds of each step of rank 0 behind the warm-up. What job and diag said of a run that went wrong is
    in `kept`."""
    with tempfile.TemporaryDirectory(prefix="go-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            walls, blocks = _measured(gpus, port, steps, with_diag, folder, blocks_each)
        except Exception:
            keep_evidence(folder, kept)
            raise
        if "error" in blocks:
            keep_evidence(folder, kept)
        return walls, blocks


def _measured(  # noqa: PLR0917 - one caller, above
    gpus: Sequence[int], port: int, steps: int, with_diag: bool, folder: Path, blocks_each: int
) -> tuple[list[float], dict[str, Any]]:
    path = os.pathsep.join(filter(None, [str(_IN_RANKS), os.environ.get("PYTHONPATH")]))
    variables = {
        **environment(gpus, port, folder),
        "ITERS": "1000000",
        "SAVE_STEPS": "1000000",
        "GLOBAL_BATCH": "2",
    }
    changed = {"PYTHONPATH": path, **variables}
    command = ["env", *(f"{key}={value}" for key, value in changed.items()), "bash", str(RUN)]
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(under_diag(command, folder)) if with_diag else None
        process = run.process if run is not None else stack.enter_context(alone(command, folder))
        until(
            lambda: target.complete(folder, len(gpus)),
            _START_SECONDS,
            f"the job trains on GPUs {gpus}",
            process.poll,
        )
        wanted = _WARM_UP_STEPS + steps
        until(
            lambda: len(target.read_steps(folder)) >= wanted,
            _START_SECONDS + steps,
            f"{wanted} steps",
            process.poll,
        )
        walls = [step.wall for step in target.read_steps(folder)[_WARM_UP_STEPS:wanted]]
        if run is None:
            return walls, {}
        try:
            blocks = switch(processes(run), blocks_each, _BLOCK_SECONDS)
        except NotReady as error:
            # the job goes on: then diag lost a process and goes on, too
            with contextlib.suppress(AssertionError):
                run.until(lambda: run.process.poll() is not None, _LAST_WORDS_SECONDS)
            return walls, {"error": f"{error}; exit code of the job: {run.process.poll()}"}
        over = max(end for pair in blocks for _, end in pair)
        until(
            lambda: target.read_steps(folder)[-1].start >= over,
            _START_SECONDS,
            "the last block's steps",
            process.poll,
        )
        recorded = target.read_steps(folder)
        on, off = ([within(recorded, block) for block in side] for side in zip(*blocks, strict=True))
        both = [(statistics.median(a), statistics.median(b)) for a, b in zip(on, off, strict=True) if a and b]
        ratio = ratios([a for a, _ in both], [b for _, b in both])
        return walls, {"pairs": len(both), "low": ratio.low, "mid": ratio.mid, "high": ratio.high}
