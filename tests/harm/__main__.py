"""`python -m tests.harm`: faults x seeds, side by side, and the table of what came to harm. Exit code 1 when something did."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.harm.faults import FAULTS
from tests.harm.trial import Outcome, run_trial


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.harm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="trials of each fault (default 10)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--faults", default="", metavar="NAME,...", help="default all")
    parser.add_argument("--workers", type=int, default=3, help="trials side by side (default 3)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what trials left that went wrong")
    parser.add_argument("--results", type=Path, metavar="FILE", help="one JSON line a trial is appended to it")
    options = parser.parse_args(argv)
    names = options.faults.split(",") if options.faults else [fault.name for fault in FAULTS]
    chosen = [fault for fault in FAULTS if fault.name in names and not (fault.needs_root and os.getuid())]
    if len(chosen) < len(names):
        print(f"left out (unknown, or needs root): {sorted(set(names) - {fault.name for fault in chosen})}", file=sys.stderr)

    def trial(job: tuple[int, int]) -> Outcome:
        fault, seed = chosen[job[1]], job[0]
        folder = Path(tempfile.mkdtemp(prefix="harm-"))
        outcome = run_trial(fault, seed, folder)
        if outcome.wrong and options.keep is not None:
            shutil.copytree(folder, options.keep / f"{fault.name}-{seed}", symlinks=True, dirs_exist_ok=True,
                            ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
        shutil.rmtree(folder, ignore_errors=True)
        return outcome

    jobs = [(seed, index) for seed in range(options.first, options.first + options.seeds) for index in range(len(chosen))]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.workers) as pool:
        for outcome in pool.map(trial, jobs):
            outcomes.append(outcome)
            if outcome.wrong:
                print(f"{outcome.fault} seed {outcome.seed} ({outcome.did}): {'; '.join(outcome.wrong)}", flush=True)
            if options.results is not None:
                with open(options.results, "a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    print("\n" + table(outcomes))
    return int(any(outcome.wrong for outcome in outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: what was done, how often, what came to harm."""
    about = {fault.name: fault.about for fault in FAULTS}
    count, harmed = Counter(one.fault for one in outcomes), Counter(one.fault for one in outcomes if one.wrong)
    gaps = {name: max(one.longest_gap for one in outcomes if one.fault == name) for name in count}
    lines = ["| fault | what is done to diag | trials | harmed | longest pause of a rank, s |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {name} | {about[name]} | {count[name]} | {harmed[name]} | {gaps[name]:.2f} |" for name in count]
    longest = max(gaps.values(), default=0)
    return "\n".join([*lines, f"| all | | {sum(count.values())} | {sum(harmed.values())} | {longest:.2f} |"])


if __name__ == "__main__":
    sys.exit(main())
