"""`python -m tests.labs.mutation`: small changes to the code that judges hangs; a test has to fail for each. Needs
cosmic-ray (`make mutants` installs it). Exit code 1 when one survived that is not explained."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.labs.mutation.judge import Judge, Result
from tests.labs.mutation.mutants import Mutant, sample

ROOT = Path(__file__).parents[3]
_HANG = "diag/detectors/hang"
# Guards against false alarms count three times.
_GUARDS = (
    *("silence", "detector", "patience", "grounds", "corroborate", "collectives", "rank_wait", "attribution"),
    *("moment", "at_rest", "communicators", "endless_kernel"),
)
# These only put a verdict into words: the goldens hold them.
_WORDS = ("__init__", "catalogue", "facts", "call_words", "messages", "wait_text")
_FILES = sorted(path.stem for path in (ROOT / _HANG).glob("*.py") if path.stem not in _WORDS)
WEIGHTS = {
    **{f"{_HANG}/{name}.py": 3.0 if name in _GUARDS else 1.0 for name in _FILES},
    "diag/state/wait_graph.py": 3.0,
}
# All that judge hangs by facts told, without a process.
TESTS = (
    "tests/detectors/test_held_up.py",
    *("tests/detectors/test_patience.py", "tests/detectors/test_passed_mismatch.py"),
    *("tests/core/test_waitgraph.py", "tests/core/test_wait_chain.py", "tests/core/test_idle.py"),
    *("tests/core/test_lasting.py", "tests/core/test_one_judge.py", "tests/core/test_gpu_spins.py"),
    *("tests/core/test_ras.py", "tests/core/test_network.py"),
    *("tests/detectors/test_printing.py", "tests/cluster_unit/test_hang_of_nodes.py"),
)
# Cases drawn anew each time would kill by chance; the size of a job is no guard.
_ALWAYS = "not every_verdict_is_put_into_words and not any_picture and not sixteen_thousand"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.mutation", description=__doc__)
    parser.add_argument("--size", type=int, default=150, help="mutants drawn (default 150)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name has this")
    parser.add_argument("--workers", type=int, default=2, help="side by side (default 2)")
    parser.add_argument(
        "--budget",
        type=float,
        default=60.0,
        help="seconds of tests for a mutant, the quickest first (default 60)",
    )
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl", metavar="FILE")
    parser.add_argument("--tests", nargs="*", metavar="FILE", help="these instead of all that judge hangs")
    parser.add_argument("--again", action="store_true", help="judge once more those that survived")
    options = parser.parse_args(argv)
    drawn = [one for one in sample(ROOT, WEIGHTS, options.size, options.seed) if options.only in one.name]
    done = {} if not options.results.exists() else _read(options.results)
    wanted = [
        one
        for one in drawn
        if one.name not in done or (options.again and done[one.name].outcome == "survived")
    ]
    print(f"{len(drawn)} mutants, {len(wanted)} to judge", flush=True)
    if wanted:
        done |= _judge(wanted, options.workers, options.results, options.budget, options.tests or _tests())
    results = [done[one.name] for one in drawn]
    print("\n" + table(results))
    left = [one for one in results if one.outcome == "survived"]
    print(*(f"\n{one.name}\n{one.diff}" for one in left), sep="\n")
    return int(bool(left))


def _read(path: Path) -> dict[str, Result]:
    """The last word about each."""
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {one.name: one for one in results}


def _judge(
    wanted: list[Mutant], workers: int, results: Path, budget: float, tests: list[str]
) -> dict[str, Result]:
    done: dict[str, Result] = {}

    def keep(result: Result) -> None:
        done[result.name] = result
        with results.open("a") as out:
            out.write(json.dumps(asdict(result)) + "\n")
        print(
            f"{len(done):4} {result.outcome:8} {result.name}  {result.tests} tests  {result.by}", flush=True
        )

    options = (
        "-q",
        "-s",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--timeout=0",
        "-k",
        _ALWAYS,
        "--rootdir",
        str(ROOT),
    )
    status = pytest.main([*options, *tests], plugins=[Judge(ROOT, wanted, workers, budget, keep)])
    if len(done) < len(wanted):
        sys.exit(f"error: not all mutants were judged (pytest ended with {status})")
    return done


def _tests() -> list[str]:
    return [*sorted(map(str, (ROOT / "tests" / "detectors").glob("test_hang*.py"))), *TESTS]


def table(results: list[Result]) -> str:
    by_file: dict[str, Counter[str]] = {}
    for one in results:
        by_file.setdefault(one.name.split(":")[0], Counter())[one.outcome] += 1
    rows = [
        f"| {path} | {count.total()} | {count.total() - count['survived']} |"
        for path, count in by_file.items()
    ]
    killed = sum(one.outcome != "survived" for one in results)
    rows.append(f"| all | {len(results)} | {killed} ({100 * killed / max(1, len(results)):.0f} %) |")
    return "\n".join(["| file | mutants | killed |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    sys.exit(main())
