"""`python -m tests.labs.forecast`: runs the trials and prints the table. `--resume` goes on where a run was cut
off.

Seeds 1-20 are the report; thresholds were chosen on seeds from 100 on.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["main"]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.labs.forecast", description=__doc__)
    p.add_argument("--seeds", default="1-20", metavar="FROM-TO,...", help="default 1-20")
    p.add_argument("--jobs", default="light", metavar="light,megatron", help="which job; default light")
    p.add_argument("--only", choices=("fits", "too-small"), help="half of them")
    p.add_argument("--workers", type=int, default=2, help="trials side by side (default 2)")
    p.add_argument("--results", type=Path, default=Path("build/forecast.jsonl"), metavar="FILE")
    p.add_argument("--resume", action="store_true", help="leave out what FILE has already")
    p.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories")
    p.add_argument("--table", action="store_true", help="print the table of FILE and run none")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    from .run import Trial, run_trial
    from .table import markdown, passed, summary

    trials = [
        Trial(seed, fits, job)
        for job in options.jobs.split(",")
        for seed in _seeds(options.seeds)
        for fits in (False, True)
        if options.only is None or fits == (options.only == "fits")
    ]
    rows = _read(options.results) if options.resume or options.table else []
    if not options.table:
        done = {row["trial"] for row in rows}
        options.results.parent.mkdir(parents=True, exist_ok=True)
        if not options.resume:
            options.results.write_text("")
        rows += _run_all([trial for trial in trials if trial.name not in done], options, run_trial)
    print(markdown(rows))
    print()
    print(summary(rows))
    return 0 if passed(rows) else 1


def _run_all(todo: Sequence[Any], options: argparse.Namespace, run_trial: Any) -> list[dict[str, Any]]:
    lock, began, rows = threading.Lock(), time.monotonic(), []

    def one(trial: Any) -> None:
        row = run_trial(trial, options.keep)
        with lock, open(options.results, "a") as file:
            file.write(json.dumps(row) + "\n")
            rows.append(row)
            said = f"{'ok ' if row['ok'] else 'NO '} {row['trial']:24} {row['kind']} {row['place']} {row['pace']} "
            said += f"k={row['fails_at']} lead {row.get('lead')} {row.get('warnings')} {row.get('error', '')}"
            print(
                f"[{time.monotonic() - began:5.0f} s, {len(rows)}/{len(todo)}] {said}",
                file=sys.stderr,
                flush=True,
            )

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(options.workers) as pool:
        futures = [pool.submit(one, trial) for trial in todo]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return rows


def _seeds(text: str) -> list[int]:
    """
    >>> _seeds("1-3,7")
    [1, 2, 3, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _read(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return list({row["trial"]: row for row in rows}.values())


if __name__ == "__main__":
    sys.exit(main())
