"""`python -m tests.bench`: what diag costs, side by side with what people use today, as one table."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import Row

    Parts = Sequence[Callable[[], list[Row]]]

__all__ = ["main"]

SECTIONS = ("commands", "dump", "slowdown", "events", "steady", "scale", "nccl", "logs", "rules", "gpu")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    p.add_argument("--quick", action="store_true", help="2 minutes instead of 12: fewer rounds, no torch")
    p.add_argument("--only", action="append", choices=SECTIONS, metavar="SECTION",
                   help=f"one of {', '.join(SECTIONS)}; may be repeated")
    p.add_argument("--output", type=Path, default=Path("build/bench"), metavar="FILE",
                   help="write FILE.json and FILE.md (default build/bench)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    # Late: --help needs no torch, psutil or calibration.
    from .machine import facts, load
    from .runs import NotReady
    from .table import Row, markdown, write

    began, machine, watched = time.monotonic(), facts(), load()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s, load {os.getloadavg()[0]:.1f}] {text}", file=sys.stderr, flush=True)

    rows: list[Row] = []
    for name in options.only or SECTIONS:
        for part in _parts(name, options.quick, say):
            try:
                rows += part()
            except (NotReady, AssertionError) as error:  # AssertionError: LiveRun's, with the end of the terminal
                reason = " ".join(str(error).split())
                say(reason)
                rows.append(Row(name, f"not measured: {reason[:120]}", verdict="not measured"))
    watched.end()
    machine |= {"seconds": round(time.monotonic() - began), "load_meanwhile": watched.samples, "quick": options.quick}
    header = _header(machine, watched.samples)
    print(markdown(header, rows))
    for path in write(options.output, header, machine, rows):
        say(f"written: {path}")
    return 0


def _parts(name: str, quick: bool, say: Callable[[str], None]) -> Parts:
    from . import commands, dumps, events, gpu, logs, nccl_log, rules, scale, slowdown, steady

    count = 15 if quick else 40
    parts: dict[str, Parts] = {
        "commands": [lambda: commands.start_rows(count, say), lambda: commands.hook_rows(count, say)],
        "dump": [lambda: dumps.rows(8, 1.0, 5 if quick else 15, say), lambda: dumps.rows(64, 0.3, 3 if quick else 7, say),
                 lambda: dumps.sick_rows(3 if quick else 7, say)],
        "slowdown": [lambda: slowdown.switched(40, say)] if quick else [
            lambda: slowdown.rows(13.0, 3, say), lambda: slowdown.switched(100, say)],
        "events": [lambda: events.rows(15.0 if quick else 50.0, say)] + (
            [] if quick else [lambda: events.recorder_rows(50.0, say)]),
        "steady": [lambda: steady.rows(8, 15.0, say, torch=False)] if quick else [
            lambda: steady.rows(2, 60.0, say, torch=True), lambda: steady.rows(8, 60.0, say, torch=False)],
        "scale": [
            lambda: scale.merge_rows({10_000: 0.1} if quick else {10_000: 0.1, 100_000: 1.0}, say),
            lambda: scale.verdict_rows(4096 if quick else 16384, ("absent", "mismatch", "half")[: 1 if quick else 3], say)],
        "nccl": [lambda: nccl_log.rows(40 if quick else 200, 5 if quick else 15, say)],
        "rules": [lambda: rules.rows(100_000 if quick else 400_000, 5 if quick else 15, say)],
        "logs": [lambda: logs.rows(100 if quick else 1000, 3 if quick else 7, say)],
        "gpu": [lambda: gpu.rows(15 if quick else 40, say)],
    }
    return parts[name]


def _header(machine: dict[str, object], loads: Sequence[float]) -> list[str]:
    versions = machine["versions"]
    assert isinstance(versions, dict)
    typical = f"{statistics.median(loads):.1f}, most {max(loads):.1f}" if loads else "not read"
    return [
        f"{machine['started']}: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"took {machine['seconds']} s{' (--quick)' if machine['quick'] else ''}; load while measuring: median {typical} "
        "(the benchmark itself keeps 1 to 2 cores busy)",
        "intervals are bootstrap 95 %; `unclear`: the goal lies inside the interval; MB are 1e6 bytes; CPU in % of one core",
    ]


if __name__ == "__main__":
    sys.exit(main())
