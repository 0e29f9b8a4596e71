"""`python -m tests.labs.soak`: an hour beside a busy node, then a day of told time: figures, plots, and exit code
1 with a fault."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.labs.soak.day import Hour, soak_told
from tests.labs.soak.judge import HOUR, SHORT, Limits, judge_day, judge_live, trends
from tests.labs.soak.live import Asking, Lived, Sampler, soak_live
from tests.labs.soak.sampling import Disk, Row, read_rows

_SHORT_SECONDS = 35.0
_SHORT_ASKING = Asking(metrics=2.0, dump=8.0, top=12.0, listens=5.0, away=3.0)
_FULL_AFTER = (
    9.0  # told hours after which windows of time are full, and as many attempts were made as are kept
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the live run (default 60; 0: none)")
    parser.add_argument("--day", action="store_true", help="the day of told time alone")
    parser.add_argument("--hours", type=float, default=24.0, help="of told time (default 24; 0: none)")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="of the told job, 0.2 as the live one's takes three times as long (default 1)",
    )
    parser.add_argument("--trace", action="store_true", help="tracemalloc over the told hours: twice as slow")
    parser.add_argument("--short", action="store_true", help="35 seconds and one told hour")
    parser.add_argument(
        "--again", action="store_true", help="judge and draw what an earlier run left in --output"
    )
    parser.add_argument("--output", type=Path, default=Path("build/soak"), metavar="DIR")
    options = parser.parse_args(argv)
    faults: list[str] = []
    limits = SHORT if options.short else HOUR
    if options.minutes and not options.day:
        live = options.output / "live"
        if not options.again:
            seconds = _SHORT_SECONDS if options.short else options.minutes * 60
            soak_live(
                live,
                seconds,
                every=1.0 if options.short else 5.0,
                dense=options.short,
                asking=_SHORT_ASKING if options.short else Asking(),
            )
        faults += _told_live(live, limits)
    if options.hours:
        day = options.output / "day"
        hours = 1.0 if options.short else options.hours
        if not options.again:
            soak_told(
                day,
                hours,
                each=hours / 24,
                ranks=4 if options.short else 8,
                step_seconds=2.0 if options.short else options.step_seconds,
                addresses=64 if options.short else 512,
                trace=options.trace,
            )
        faults += _told_day(day, hours)
    print("\n".join(f"fault: {fault}" for fault in faults) or "no fault")
    return int(bool(faults))


def _told_live(folder: Path, limits: Limits) -> list[str]:
    rows, disks = read_rows(folder / "processes.csv", Row), read_rows(folder / "disk.csv", Disk)
    lived = Lived(**json.loads((folder / "lived.json").read_text()))
    print(
        "| process | RSS MB: first, last, most | private MB | slope, MB an hour | open files | threads | CPU % of a core |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for one in trends(rows, limits):
        rss, private = (
            " ".join(f"{value / 1e6:.1f}" for value in values) for values in (one.rss, one.private)
        )
        fds, threads = (" ".join(f"{value:g}" for value in values) for values in (one.fds, one.threads))
        cpu = " ".join(f"{100 * value:.2f}" for value in one.cpu)
        print(f"| {one.process} | {rss} | {private} | {one.slope:+.2f} | {fds} | {threads} | {cpu} |")
    last, load = disks[-1], statistics.median(disk.load for disk in disks)
    print(
        f"disk at the end, MB: journal {last.journal / 1e6:.1f} in {last.journal_files} files, output {last.output / 1e6:.1f}, "
        f"nccl {last.nccl / 1e6:.1f}, dumps {last.dumps / 1e6:.1f} in {last.dump_files} files; load {load:.1f}; "
        f"{lived.seconds:.0f} s; asked: {lived.asked}\n{lived.terminal}"
    )
    _draw("live", folder, rows, disks)
    return judge_live(rows, disks, read_rows(folder / "samplers.csv", Sampler), lived, limits)


def _told_day(folder: Path, hours: float) -> list[str]:
    rows, outcome = read_rows(folder / "day.csv", Hour), json.loads((folder / "day.json").read_text())
    for row in rows:
        print(
            f"told hour {row.hour:5.2f}: {row.records} records, RSS {row.rss / 1e6:.1f} MB, state {row.state / 1e6:.2f} MB, "
            f"CPU a minute {row.taking:.0f} + {row.checking:.0f} + {row.scraping:.0f} ms, journal {row.journal / 1e6:.0f} MB"
        )
    print(f"findings opened: {outcome['opened']}, restarts: {outcome['restarts']}")
    _draw("day", folder, rows, outcome["hours"])
    return judge_day(rows, outcome, min(_FULL_AFTER, hours * 3 / 4))


def _draw(what: str, folder: Path, *given: object) -> None:
    try:
        from tests.labs.soak import plots
    except ImportError:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return
    getattr(plots, f"draw_{what}")(folder / f"{what}.svg", *given)


if __name__ == "__main__":
    sys.exit(main())
