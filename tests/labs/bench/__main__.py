"""`python -m tests.labs.bench`: what diag costs, side by side with what people use today, as one table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import Row

    Parts = Sequence[Callable[[], list[Row]]]

__all__ = ["main"]

SECTIONS = (
    "commands",
    "sample",
    "dump",
    "debug",
    "hubs",
    "slowdown",
    "events",
    "steady",
    "asleep",
    "scale",
    "nccl",
    "rules",
    "logs",
    "gpu",
)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.labs.bench", description=__doc__)
    p.add_argument(
        "--quick",
        action="store_true",
        help="2 minutes instead of 20: fewer rounds, no torch, no thousand nodes",
    )
    p.add_argument(
        "--only",
        action="append",
        choices=SECTIONS,
        metavar="SECTION",
        help=f"one of {', '.join(SECTIONS)}; may be repeated",
    )
    p.add_argument(
        "--output",
        type=Path,
        default=Path("build/bench"),
        metavar="FILE",
        help="write FILE.json and FILE.md (default build/bench)",
    )
    p.add_argument(
        "--history",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="append the table to tests/labs/bench/history.jsonl and render docs/benchmarks.md anew "
        "(default: when all is measured, without --quick and --only)",
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    # Late: --help needs no torch, psutil or calibration.
    from . import history
    from .machine import facts, load, scrubbed
    from .runs import NotReady
    from .table import Row, markdown, write

    began, machine, watched = time.monotonic(), facts(), load()

    def say(text: str) -> None:
        print(
            f"[{time.monotonic() - began:4.0f} s, load {os.getloadavg()[0]:.1f}] {text}",
            file=sys.stderr,
            flush=True,
        )

    rows: list[Row] = []
    for name in options.only or SECTIONS:
        for part in _parts(name, options.quick, say, rows):
            try:
                rows += part()
            # AssertionError: LiveRun's, with the end of the terminal; OSError: what a peer did not bear
            except (NotReady, AssertionError, OSError, subprocess.SubprocessError) as error:
                reason = scrubbed(" ".join(str(error).split()))
                say(reason)
                rows.append(
                    Row(
                        name,
                        f"not measured: {reason[:120]}",
                        verdict="not measured",
                        key=f"{name}, not measured",
                    )
                )
    watched.end()
    machine |= {
        "seconds": round(time.monotonic() - began),
        "load_meanwhile": watched.samples,
        "quick": options.quick,
    }
    header = history.header(machine)
    print(markdown(header, rows))
    for path in write(options.output, header, machine, rows):
        say(f"written: {path}")
    wanted = options.history if options.history is not None else not (options.quick or options.only)
    if wanted:
        history.append(machine, rows)
        say(f"appended to {history.FILE.name}; rendered: {history.render().name}")
    return 0


def _parts(name: str, quick: bool, say: Callable[[str], None], rows: Sequence[Row]) -> Parts:
    """`rows` are those that were measured before."""
    from . import (
        asleep,
        commands,
        debug_server,
        dumps,
        events,
        gpu,
        hubs,
        logs,
        nccl_log,
        rules,
        run_start,
        sample,
        scale,
        slowdown,
        steady,
    )

    def rank_seconds() -> float | None:
        return next((row.values["peer"] / 64 for row in rows if row.key == "P7 64 ranks"), None)

    count = 10 if quick else 40
    parts: dict[str, Parts] = {
        "commands": [
            lambda: commands.start_rows(count, say),
            lambda: commands.hook_rows(count, say),
            lambda: run_start.rows(2 if quick else 15, 1 if quick else 5, say),
        ],
        "sample": [
            lambda: sample.cost_rows(10 if quick else 40, 5 if quick else 40, say),
            lambda: sample.torn_rows(5_000 if quick else 30_000, 40 if quick else 300, say),
        ],
        "dump": [lambda: dumps.rows(8, 1.0, 3, say)]
        if quick
        else [
            lambda: dumps.rows(8, 1.0, 11, say),
            lambda: dumps.rows(64, 0.3, 6, say),
            lambda: dumps.sick_rows(5, say),
        ],
        "debug": [] if quick else [lambda: debug_server.rows(10, 20.0, say)],
        "hubs": [lambda: hubs.gather_rows(100, 2, say)]
        if quick
        else [
            lambda: hubs.gather_rows(1000, 7, say),
            lambda: hubs.command_rows(1000, 3, rank_seconds(), say),
        ],
        "slowdown": []
        if quick
        else [lambda: slowdown.rows(10.0, 2, say), lambda: slowdown.switched(50, say)],
        "events": [lambda: events.rows(8.0 if quick else 30.0, say)]
        + ([] if quick else [lambda: events.recorder_rows(30.0, say)]),
        "steady": [lambda: steady.rows(1, 5.0, 1, say)]
        if quick
        else [
            lambda: steady.idle_rows(30.0, say),
            lambda: steady.rows(1, 30.0, 0, say),
            lambda: steady.rows(8, 30.0, 7, say),
        ],
        "asleep": [lambda: asleep.rows(1, 10.0 if quick else 30.0, say)]
        + ([] if quick else [lambda: asleep.rows(8, 30.0, say)]),
        "scale": [
            lambda: scale.merge_rows({10_000: 0.1} if quick else {10_000: 0.1, 100_000: 1.0}, say),
            lambda: scale.verdict_rows(
                1024 if quick else 16384, ("absent", "mismatch", "half")[: 1 if quick else 3], say
            ),
        ],
        "nccl": [lambda: nccl_log.rows(10 if quick else 100, 3 if quick else 9, say)],
        "rules": [lambda: rules.rows(10_000 if quick else 100_000, 2 if quick else 7, say)],
        "logs": [lambda: logs.rows(3_000_000 if quick else 1_000_000_000, say)],
        "gpu": [lambda: gpu.rows(15 if quick else 40, say)],
    }
    return parts[name]


if __name__ == "__main__":
    sys.exit(main())
