"""`python -m tests.labs.gauntlet`: runs the trials, seed 1 of all cases first, and prints the table.

All of them take more than an hour on two cores; `--resume` goes on where a run was cut off.
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
    p = argparse.ArgumentParser(prog="python -m tests.labs.gauntlet", description=__doc__)
    p.add_argument(
        "--cases",
        metavar="NAME,...",
        help="names, or the beginnings of names (default all but the slow ones)",
    )
    p.add_argument("--seeds", default="1,2,3", metavar="N,...", help="default 1,2,3")
    p.add_argument(
        "--workers", type=int, default=2, help="trials side by side, five ranks a worker together (default 2)"
    )
    p.add_argument("--results", type=Path, default=Path("build/gauntlet.jsonl"), metavar="FILE")
    p.add_argument("--resume", action="store_true", help="leave out what FILE has already")
    p.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the run directories of trials that went wrong"
    )
    p.add_argument(
        "--nvrx",
        type=Path,
        metavar="DIR",
        help="folder with nvidia_resiliency_ext, to be compared with as well",
    )
    p.add_argument("--list", action="store_true", help="print the trials with their layouts and run none")
    p.add_argument("--table", action="store_true", help="print the table of FILE and run none")
    return p


class _Slots:
    """Trials side by side, as long as their ranks together are no more than five a worker."""

    def __init__(self, workers: int) -> None:
        count = 5 * workers
        self._free, self._count, self._changed = count, count, threading.Condition()

    def take(self, weight: int) -> int:
        weight = min(weight, self._count)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= weight)
            self._free -= weight
        return weight

    def give(self, weight: int) -> None:
        with self._changed:
            self._free += weight
            self._changed.notify_all()


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    from .cases import CASES, trial_of
    from .run import run_trial
    from .table import markdown, passed, summary

    wanted = options.cases.split(",") if options.cases else []
    cases = [
        case
        for case in CASES
        if any(case.name.startswith(name) for name in wanted) or (not wanted and not case.slow)
    ]
    trials = [trial_of(case, int(seed)) for seed in options.seeds.split(",") for case in cases]
    if options.list:
        for trial in trials:
            print(f"{trial.name:34} {trial.layout:18} {trial.fault or ''}")
        return 0
    rows = _read(options.results) if options.resume or options.table else []
    if not options.table:
        done = {row["trial"] for row in rows}
        todo = [trial for trial in trials if trial.name not in done]
        options.results.parent.mkdir(parents=True, exist_ok=True)
        if not options.resume:
            options.results.write_text("")
        rows += _run_all(todo, options, run_trial)
    print(markdown(rows))
    print()
    print(summary(rows))
    return 0 if passed(rows) else 1


def _run_all(todo: Sequence[Any], options: argparse.Namespace, run_trial: Any) -> list[dict[str, Any]]:
    slots, lock, began, rows = _Slots(options.workers), threading.Lock(), time.monotonic(), []

    def one(trial: Any) -> None:
        weight = slots.take(trial.weight)
        try:
            row = run_trial(trial, options.keep, options.nvrx)
        finally:
            slots.give(weight)
        with lock, open(options.results, "a") as file:
            file.write(json.dumps(row) + "\n")
            rows.append(row)
            print(
                f"[{time.monotonic() - began:5.0f} s, {len(rows)}/{len(todo)}] {_line(row)}",
                file=sys.stderr,
                flush=True,
            )

    # The trials that run when it is interrupted end their jobs first, in their own time; none begins any
    # more.
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


def _line(row: dict[str, Any]) -> str:
    top = row.get("top") or {}
    said = (
        f"{top.get('id', '-')} {top.get('class', '')} {top.get('ranks', '')}"
        if not row["benign"]
        else str(row.get("said"))
    )
    words = f"{'ok ' if row['ok'] else 'NO '} {row['trial']:32} {row['layout']:17} {row['fault']:40} {said}"
    if row.get("delay") is not None:
        words += f" after {row['delay']} s"
    for tool, answer in row.get("rivals", {}).items():
        words += f"; {tool}: {answer['verdict']} {answer['named'] or ''}"
    return words + (f" ERROR {row['error'][:300]}" if "error" in row else "")


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    from .rivals import judge

    newest = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        for answer in row.get("rivals", {}).values():
            answer["verdict"] = judge(answer, [frozenset(ranks) for ranks in row["right"]])
        newest[row["trial"]] = row
    return list(newest.values())


if __name__ == "__main__":
    sys.exit(main())
