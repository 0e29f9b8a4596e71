"""Native frames of a hang, again and again, of a rank that spins for its GPU: does the verdict stand, in the diag that
pauses the ranks and in a second one beside it? `python -m tests.labs.gpu.pauses --keep DIR [--dumps 20]`.

One loop of `loops` (rank 1 sleeps before a collective, rank 0 spins in `.item()`) under `diag run`, with `diag watch`
beside it. When the former has reported who holds the job up, `diag dump --native` is typed that often. Exit code 0 where
neither reported anything else from then on. DIR has what both recorded, and `pauses.json`: `second` says what the other
diag had reported by then, if anything. Needs a GPU: without one rank 0 computes, and waits for nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.labs.bench import gpu_loop, target
from tests.liverun import DIAG, live_run

from .loop_cases import CASES
from .loops import _keep, say

_RANKS, _HANG_SECONDS, _BESIDE_SECONDS, _AFTER_SECONDS = 2, 150.0, 30.0, 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.gpu.pauses", description=__doc__)
    parser.add_argument("--keep", type=Path, default=Path("build/gpu-pauses"), metavar="DIR")
    parser.add_argument("--dumps", type=int, default=20)
    options = parser.parse_args()
    case = next(one for one in CASES if one.name == "late-item")
    folder, beside = (Path(tempfile.mkdtemp(prefix="gp-", dir="/tmp")) for _ in range(2))
    env = {
        "BENCH_FOLDER": str(folder),
        "NCCL_RAS_ADDR": "localhost:29790",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
    }
    with live_run(folder, gpu_loop.command(_RANKS, *case.arguments), env=env) as run:
        run.until(lambda: target.complete(folder, _RANKS), 90)
        words = [*DIAG, "watch", "--pid", str(target.pids(folder)[0]), "--run-root", str(beside), "--no-http"]
        with open(beside / "watch.txt", "wb") as output:
            second = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        try:
            run.until(lambda: _stands(folder), _HANG_SECONDS)
            late = time.monotonic() + _BESIDE_SECONDS
            run.until(lambda: _stands(beside) or time.monotonic() > late, 2 * _BESIDE_SECONDS)
            seen = _stands(beside)
            say(f"first: {_stands(folder)}; second: {seen or 'nothing'}")
            before = {root: len(_changes(root)) for root in (folder, beside)}
            took = []
            for number in range(options.dumps):
                began = time.monotonic()
                dump = [*DIAG, "dump", "--all-ranks", "--native", "--run-dir", str(run.run_dir)]
                done = subprocess.run(
                    [*dump, "-o", str(folder / f"dump-{number % 2}.tar.gz")],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )
                took.append(round(time.monotonic() - began, 2))
                if not number:
                    (folder / "dump.txt").write_text(done.stdout + done.stderr)
            end = time.monotonic() + _AFTER_SECONDS
            run.until(
                lambda: time.monotonic() > end, 2 * _AFTER_SECONDS
            )  # what a late reading says counts too
            told = {
                name: _changes(root)[before[root] :] for name, root in (("first", folder), ("second", beside))
            }
        finally:
            second.terminate()
            second.wait(20)
    other = {
        name: [(one["change"], one["finding"]["id"], one["finding"].get("class")) for one in changes]
        for name, changes in told.items()
    }
    changed = {name: [one for one in found if one[0] != "updated"] for name, found in other.items()}
    options.keep.mkdir(parents=True, exist_ok=True)
    _keep(folder, options.keep / "first")
    _keep(beside, options.keep / "second")
    (options.keep / "pauses.json").write_text(
        json.dumps({"seconds": took, "second": seen, "told": other}, indent=1)
    )
    say(f"{len(took)} dumps, {min(took)} to {max(took)} s each; told anew or as over: {changed}")
    return int(any(changed.values()))


def _changes(root: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(root.rglob("findings.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def _stands(root: Path) -> str:
    """Who holds the job up there, as id, class and ranks; empty where nobody is reported."""
    found = [one for one in _changes(root) if one["finding"]["id"] in ("hang", "held-up")]
    if not found or found[-1]["change"] == "resolved":
        return ""
    last = found[-1]["finding"]
    return f"{last['id']} {last.get('class')} {last['ranks']}"


if __name__ == "__main__":
    sys.exit(main())
