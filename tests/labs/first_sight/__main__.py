"""`python -m tests.labs.first_sight --round 1`: runs the jobs of a round under diag, one JSON line each.

A round takes about an hour with two workers; `--resume` goes on where it was cut off. The truths are not read.
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
from types import FrameType

from .rounds import Job, changed, default_results, jobs_of, round_folder
from .run import DIAG, cannot_be_imported, run_job


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.first_sight", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs (default all)")
    parser.add_argument("--round", type=int, required=True, metavar="N")
    parser.add_argument("--workers", type=int, default=2, help="jobs side by side (default 2)")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="default build/first_sight/round_N.jsonl"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what FILE has already")
    options = parser.parse_args(argv)
    folder = round_folder(options.round)
    results = (options.results or default_results(options.round)).absolute()
    if not folder.is_dir():
        parser.error(f"there is no {folder.name}")
    if not DIAG.exists():
        parser.error(f"no {DIAG}: install diag for the interpreter that runs the lab")
    if results.exists() and not options.resume:
        parser.error(f"{results} is there: go on with --resume, or name another --results")
    if different := changed(folder):
        parser.error(f"not as it was hashed: {', '.join(different)}")
    jobs = jobs_of(folder)
    if unknown := set(options.names) - {job.name for job in jobs}:
        parser.error(f"no such job: {', '.join(sorted(unknown))}")
    done = (
        {json.loads(line)["name"] for line in results.read_text().splitlines()} if results.exists() else set()
    )
    chosen = [
        job for job in jobs if job.name not in done and (not options.names or job.name in options.names)
    ]
    return _run(_possible(chosen), results, options.workers)


def _possible(jobs: Sequence[Job]) -> list[Job]:
    absent = cannot_be_imported({"torch"}.union(*(job.needs for job in jobs)))
    possible = []
    for job in jobs:
        if lacking := absent & {"torch", *job.needs}:
            _say(f"skipped {job.name}: {sys.executable} cannot import {', '.join(sorted(lacking))}")
        else:
            possible.append(job)
    return possible


def _run(jobs: Sequence[Job], results: Path, workers: int) -> int:
    """1 when a job could not be run or it was interrupted, which ends the jobs that are under way."""
    stop, lock = threading.Event(), threading.Lock()
    places = results.with_name(f"{results.stem}-runs")
    places.mkdir(parents=True, exist_ok=True)

    def halt(number: int, frame: FrameType | None) -> None:
        stop.set()

    def one(job: Job) -> bool:
        if stop.is_set():
            return False
        _say(f"start {job.name} ({job.seconds:g} s)")
        try:
            row = run_job(job, places / job.name, stop)
        except Exception as error:
            _say(f"error {job.name}: {error!r}")
            return False
        if row is None:
            _say(f"broken off {job.name}")
            return False
        with lock, open(results, "a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        _say(f"done {job.name}: exit {row['exit_code']}, {row['seconds']:.0f} s, {row['left_behind']} left")
        return True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, halt)
    _say(f"{len(jobs)} jobs to run")
    with ThreadPoolExecutor(max(1, workers)) as pool:
        return 0 if all(list(pool.map(one, jobs))) else 1


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
