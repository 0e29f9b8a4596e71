"""`python -m tests.labs.harm`: faults x seeds, side by side, and the table of what came to harm. Exit code 1 when
something did."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.labs.harm.fault import missing
from tests.labs.harm.faults import FAULTS
from tests.labs.harm.judge import Outcome
from tests.labs.harm.trial import apart


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.harm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="trials of each fault (default 10)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--faults", default="", metavar="NAME,...", help="default all; -NAME leaves one out")
    parser.add_argument("--workers", type=int, default=3, help="trials side by side (default 3)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what trials left that went wrong")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="one JSON line a trial is appended to it"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out the trials that --results has, and count them in"
    )
    parser.add_argument("--table", action="store_true", help="only print the table of what --results has")
    options = parser.parse_args(argv)
    if (options.resume or options.table) and options.results is None:
        parser.error("--resume and --table need --results")
    done = read_results(options.results) if options.resume or options.table else []
    if not options.table:
        names = _chosen(parser, options.faults)
        known = {(one.fault, one.seed) for one in done}
        jobs = [
            (name, seed) for seed in range(options.first, options.first + options.seeds) for name in names
        ]
        done += _run([job for job in jobs if job not in known], options)
    print("\n" + table(done))
    return int(any(outcome.wrong for outcome in done))


def _chosen(parser: argparse.ArgumentParser, wanted: str) -> list[str]:
    words = [word for word in wanted.split(",") if word]
    out = {word[1:] for word in words if word.startswith("-")}
    names = [word for word in words if not word.startswith("-")] or list(FAULTS)
    unknown = ({*names} | out) - FAULTS.keys()
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    for name in names:
        if why := missing(FAULTS[name]):
            print(f"left out: {name} ({why})", file=sys.stderr)
    return [name for name in names if name not in out and not missing(FAULTS[name])]


def _run(jobs: Sequence[tuple[str, int]], options: argparse.Namespace) -> list[Outcome]:
    outcomes = []
    with ThreadPoolExecutor(options.workers) as pool:
        running = [pool.submit(_trial, name, seed, options.keep) for name, seed in jobs]
        try:
            for future in as_completed(running):
                outcome = future.result()
                outcomes.append(outcome)
                if outcome.wrong:
                    print(
                        f"{outcome.fault} seed {outcome.seed} ({outcome.did}): {'; '.join(outcome.wrong)}",
                        flush=True,
                    )
                if options.results is not None:
                    with open(options.results, "a") as file:
                        file.write(json.dumps(asdict(outcome)) + "\n")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _trial(name: str, seed: int, keep: Path | None) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="harm-"))
    outcome = apart(name, seed, folder)
    if outcome.wrong and keep is not None:
        shutil.copytree(
            folder, keep / f"{name}-{seed}", symlinks=True, dirs_exist_ok=True, ignore=_not_worth_keeping
        )
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _not_worth_keeping(folder: str, names: Iterable[str]) -> set[str]:
    """Sockets and FIFOs cannot be copied; disk images and what filled disks need not be."""
    paths = {name: Path(folder, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if name in ("disk.img", "filler", "lab", "installed")
        or path.is_fifo()
        or path.is_socket()
        or (path.is_file() and path.stat().st_size > 16 << 20)
    }


def read_results(path: Path) -> list[Outcome]:
    """A line that was cut off by whoever ended the run is done again."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(Outcome(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: what was done, how often, what came to harm."""
    count, harmed = (
        Counter(one.fault for one in outcomes),
        Counter(one.fault for one in outcomes if one.wrong),
    )
    gaps = {name: max(one.longest_gap for one in outcomes if one.fault == name) for name in count}
    lines = [
        "| fault | what is done to diag | trials | harmed | longest pause of a rank, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {FAULTS[name].about} | {count[name]} | {harmed[name]} | {gaps[name]:.2f} |"
        for name in FAULTS
        if name in count
    ]
    longest = max(gaps.values(), default=0)
    return "\n".join([*lines, f"| all | | {sum(count.values())} | {sum(harmed.values())} | {longest:.2f} |"])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
