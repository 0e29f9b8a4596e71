"""One periodic sample: its CPU against a one-shot `py-spy dump` and against a C program that does the same
reads; and how many samples of a busy rank are torn."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diag.sources.stacks.remote_stack import RemoteStacks
from diag.sources.stacks.remote_stack.memory import Memory

from . import target
from .machine import PY_SPY, pinned, ran
from .runs import NotReady, alone, until
from .stats import interval, judge
from .table import Row

__all__ = ["cost_rows", "torn_rows", "verdict_of"]

_THREADS = 18  # idle ones beside the main thread, 24 frames each: what a rank of torch has
_PEER_GOAL, _FLOOR_GOAL, _TORN_GOAL = 1 / 25, 8.0, 0.001
_GROUP = 50  # samples in one reading of the clock of CPU time
_C_ROUNDS = 2000
# argv: PID ROUNDS, then addresses and sizes on stdin. Prints seconds of CPU for one round of all reads.
_C = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static unsigned char room[1 << 20];
int main(int argc, char **argv) {
    static unsigned long address[65536];
    static size_t size[65536];
    char name[64];
    int count = 0, file, rounds = atoi(argv[2]);
    while (count < 65536 && scanf("%lu %zu", &address[count], &size[count]) == 2) count++;
    snprintf(name, sizeof name, "/proc/%s/mem", argv[1]);
    if ((file = open(name, O_RDONLY)) < 0) return 1;
    clock_t began = clock();
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++)
            if (size[i] > sizeof room || pread(file, room, size[i], (off_t)address[i]) < 0) return 2;
    printf("%.9f\n", (double)(clock() - began) / CLOCKS_PER_SEC / rounds);
    return 0;
}
"""


def cost_rows(groups: int, one_shots: int, say: Callable[[str], None]) -> list[Row]:
    """Of a rank that stands still, as a sidecar's samples are once it knows the code objects."""
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name, alone(_still(Path(name)), Path(name)):
        pid = until(lambda: target.pids(Path(name)), 60, "the rank stands")[0]
        time.sleep(1.0)  # it sleeps by then
        say(f"CPU of a sample: {groups} times {_GROUP}, and {one_shots} one-shot dumps")
        stacks = RemoteStacks()
        payload = stacks.dump(pid)
        if "failed" in payload:
            raise NotReady(f"the rank's stacks cannot be read: {payload['failed']}")
        reads = _reads_of(stacks, pid)
        ours = [_cpu_of_group(stacks, pid) for _ in range(groups)]
        shots = [ran([PY_SPY, "dump", "--nonblocking", "--pid", str(pid)]).cpu for _ in range(one_shots)]
        floor = _floor(Path(name), pid, reads)
    mine, peer = interval(ours), interval(shots)
    ratio = mine.scaled(1 / peer.mid)
    frames = sum(len(thread["frames"]) // 2 for thread in payload["threads"])
    what = f"{len(payload['threads'])} threads, {frames} frames, written as the JSON line for the hub"
    rows = [
        Row(
            f"CPU of one periodic sample ({what})",
            f"{1000 * mine.mid:.2f} ms [{1000 * mine.low:.2f}, {1000 * mine.high:.2f}]",
            f"one-shot `py-spy dump --nonblocking`: {1000 * peer.mid:.1f} ms",
            f"1/{1 / ratio.mid:.0f}",
            f"< 1/{1 / _PEER_GOAL:.0f} x",
            judge(ratio, _PEER_GOAL),
            {"diag": mine.mid, "peer": peer.mid, "ratio": ratio.mid},
            "P1",
        )
    ]
    what = f"CPU of one periodic sample, floor: the same {len(reads)} reads, {sum(size for _, size in reads) / 1000:.0f} kB"
    if floor is None:
        return [*rows, Row(what, "not measured: no C compiler", verdict="not measured", key="P2")]
    ratio = mine.scaled(1 / floor)
    return [
        *rows,
        Row(
            what,
            f"{1000 * mine.mid:.3f} ms",
            f"in C: {1000 * floor:.3f} ms",
            f"{ratio.mid:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]",
            f"< {_FLOOR_GOAL:.0f} x",
            judge(ratio, _FLOOR_GOAL),
            {"diag": mine.mid, "peer": floor, "ratio": ratio.mid},
            "P2",
        ),
    ]


def torn_rows(samples: int, dumps: int, say: Callable[[str], None]) -> list[Row]:
    """Of a rank in a busy loop: samples that say they failed, and wrong ones that do not."""
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name, pinned() as core:
        folder = Path(name)
        with alone(
            target.command(
                folder, ranks=1, spins=target.calibrate(0.01), threads=_THREADS, core=core, modules=True
            ),
            folder,
        ):
            pid = until(lambda: target.pids(folder), 60, "the loop runs")[0]
            time.sleep(1.0)
            say(f"torn samples of a busy loop: {samples} by diag, {dumps} by py-spy dump --nonblocking")
            stacks = RemoteStacks()
            ours = Counter(verdict_of(_main_of_payload(stacks.dump(pid), pid)) for _ in range(samples))
            theirs = Counter(verdict_of(_main_of_spy(pid)) for _ in range(dumps))
    bad = (samples - ours["right"]) / samples
    return [
        Row(
            f"torn samples of a busy loop ({samples:,}; retries included)",
            f"{100 * bad:.3f} %: {ours['failed']} marked as failed, {ours['wrong']} wrong and not marked",
            f"`py-spy dump --nonblocking` ({dumps}): {100 * (dumps - theirs['right']) / dumps:.1f} %: {theirs['failed']} failed, "
            f"{theirs['wrong']} wrong",
            goal=f"< {100 * _TORN_GOAL:.1f} %, none unmarked",
            verdict="met" if bad < _TORN_GOAL and not ours["wrong"] else "missed",
            values={
                "failed": ours["failed"],
                "wrong": ours["wrong"],
                "samples": samples,
                "peer_failed": theirs["failed"],
                "peer_wrong": theirs["wrong"],
                "peer_samples": dumps,
            },
            key="P6",
        )
    ]


def verdict_of(names: Sequence[str] | None) -> str:
    """Of a main thread's functions, outermost first; None where there was no sample.

    >>> below = ["_run_module_as_main", "_run_code", "<module>", "main", "_rank", *["_deep"] * 21, "train"]
    >>> verdict_of([*below, "Recorder.lap"]), verdict_of([*below, "_modules", "_forward", "_forward"])
    ('right', 'right')
    >>> verdict_of(["_deep", "train"]), verdict_of([*below, "_forward"]), verdict_of(None)
    ('wrong', 'wrong', 'failed')
    """
    if names is None:
        return "failed"
    bare = [name.rpartition(".")[2] for name in names]
    below = [
        "_run_module_as_main",
        "_run_code",
        "<module>",
        "main",
        "_rank",
        *["_deep"] * target.DEEP,
        "train",
    ]
    inside = [name for name in bare[len(below) :] if name != "<genexpr>"]
    if inside[:1] == ["_modules"]:
        inside = inside[1:] if set(inside[1:]) <= {"_forward"} else inside
        return "right" if bare[: len(below)] == below and set(inside) <= {"_forward"} else "wrong"
    return "right" if bare[: len(below)] == below and inside in ([], ["lap"]) else "wrong"


def _still(folder: Path) -> list[str]:
    return target.command(folder, ranks=1, spins=1, rest=3600.0, threads=_THREADS)


def _cpu_of_group(stacks: RemoteStacks, pid: int) -> float:
    began = time.process_time()
    for _ in range(_GROUP):
        json.dumps(stacks.dump(pid), separators=(",", ":")).encode()
    return (time.process_time() - began) / _GROUP


def _reads_of(stacks: RemoteStacks, pid: int) -> list[tuple[int, int]]:
    """Addresses and sizes that one warm sample reads."""
    found: list[tuple[int, int]] = []
    some = Memory.some

    def noted(self: Memory, address: int, size: int) -> bytes:
        data = some(self, address, size)
        found.append((address, len(data)))
        return data

    Memory.some = noted  # type: ignore[method-assign]
    try:
        stacks.dump(pid)
    finally:
        Memory.some = some  # type: ignore[method-assign]
    return found


def _floor(folder: Path, pid: int, reads: Sequence[tuple[int, int]]) -> float | None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    source, program = folder / "reads.c", folder / "reads"
    source.write_text(_C)
    built = subprocess.run(
        [compiler, "-O2", "-o", str(program), str(source)], check=False, capture_output=True
    )
    if built.returncode != 0:  # a compiler without a C library's headers
        return None
    text = "\n".join(f"{address} {size}" for address, size in reads)
    command = [str(program), str(pid), str(_C_ROUNDS)]
    told = [
        subprocess.run(command, input=text, text=True, check=True, capture_output=True).stdout
        for _ in range(3)
    ]
    return statistics.median(map(float, told))


def _main_of_payload(payload: Any, pid: int) -> list[str] | None:
    if "failed" in payload:
        return None
    frames = next((thread["frames"] for thread in payload["threads"] if thread["id"] == pid), [])
    return [payload["codes"][code][0] for code in frames[::2]]


def _main_of_spy(pid: int) -> list[str] | None:
    done = subprocess.run(
        [PY_SPY, "dump", "--nonblocking", "--json", "--pid", str(pid)], check=False, capture_output=True
    )
    if done.returncode != 0:
        return None
    threads = json.loads(done.stdout)
    frames = next((thread["frames"] for thread in threads if thread["thread_name"] == "MainThread"), [])
    return [frame["name"] for frame in reversed(frames)]
