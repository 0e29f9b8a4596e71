"""`diag replay` of a large training log, the command as people type it, against `grep -E -f` and `wc -l` over
the same file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.liverun import DIAG

from .captured import training_log
from .machine import bench_env
from .runs import NotReady
from .table import Row

__all__ = ["rows"]

# What people grep for when a job failed.
WORDS = (
    "Error",
    "Exception",
    "Traceback",
    "NCCL WARN",
    "Watchdog caught",
    "out of memory",
    "Killed",
    "Segmentation fault",
    "SIG(KILL|TERM|ABRT|SEGV)",
    "exitcode *: *-?[0-9]+",
    "timed? ?out",
    "Connection (reset|refused)",
)
_BYTES_A_SECOND = 10e6  # ours: 1 GB in less than two minutes
_MOST_MEMORY = 300e6  # whatever the size of the log


# argv: where its output goes, then the command. Prints seconds, seconds of CPU and bytes.
_MEASURE = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
with open(sys.argv[1], "wb") as output:
    subprocess.run(sys.argv[2:], stdout=output, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


@dataclass(frozen=True, slots=True)
class _Cost:
    wall: float
    cpu: float
    rss: float
    output: bytes


def rows(size: int, say: Callable[[str], None]) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        if shutil.disk_usage(name).free < 2 * size:
            raise NotReady(f"replay of {size / 1e9:g} GB: no room for the log")
        path, words = Path(name) / "train.log", Path(name) / "words"
        with path.open("wb") as file:
            for data in training_log(size):
                file.write(data)
        words.write_text("\n".join(WORDS) + "\n")
        size = path.stat().st_size
        say(f"diag replay of a log of {size / 1e6:.0f} MB")
        count = _cost(["wc", "-l", str(path)])  # the file is in memory by then
        grep = _cost(["grep", "-c", "-a", "-E", "-f", str(words), str(path)])
        ours = _cost([*DIAG, "replay", "--json", str(path)])
    lines = int(count.output.split()[0])
    found = [finding["id"] for finding in json.loads(ours.output)["findings"]]
    if not found:
        raise NotReady("replay found nothing in a log that ends in a failure")
    what = f"`diag replay` of {size / 1e9:.2g} GB, {lines:,} lines of training logs"
    peers = (
        f"`grep -E -f` of {len(WORDS)} words: {grep.wall:.1f} s ({size / grep.wall / 1e6:.0f} MB/s); "
        f"`wc -l`: {count.wall:.2f} s"
    )
    return [
        Row(what, f"{ours.wall:.1f} s, {ours.cpu:.1f} s of CPU: {size / ours.cpu / 1e6:.1f} MB, {lines / ours.cpu:,.0f} lines a "
            "second",
            peers, f"{ours.cpu / max(grep.cpu, 0.01):.0f}", f"> {_BYTES_A_SECOND / 1e6:.0f} MB a second of CPU",
            "met" if size / ours.cpu > _BYTES_A_SECOND else "missed",
            {"wall": ours.wall, "cpu": ours.cpu, "bytes": size, "lines": lines, "grep_wall": grep.wall, "grep_cpu": grep.cpu,
             "wc_wall": count.wall}, "replay speed"),
        Row("peak memory of that replay", f"{ours.rss / 1e6:.0f} MB", f"`grep`: {grep.rss / 1e6:.0f} MB", "",
            f"< {_MOST_MEMORY / 1e6:.0f} MB", "met" if ours.rss < _MOST_MEMORY else "missed",
            {"diag": ours.rss, "peer": grep.rss}, "replay memory"),
    ]  # fmt: skip


def _cost(command: Sequence[str]) -> _Cost:
    """By a small Python between: a process begins with the peak memory of the one that forked it. Into a
    file: with /dev/null as its output grep stops at the first match."""
    with tempfile.NamedTemporaryFile() as output:
        told = subprocess.run(
            [sys.executable, "-c", _MEASURE, output.name, *command],
            env=bench_env(),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        wall, cpu, rss = json.loads(told.stdout)
        return _Cost(wall, cpu, rss, Path(output.name).read_bytes())
