"""What very many ranks cost, on one core: merging their stacks, and a verdict over stacks and Flight
Recorders of 16,384."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from diag.state.stack_digest import StackSite, format_spans, merge, spans_of

from .machine import ROOT, bench_env
from .runs import NotReady
from .table import Row, times

__all__ = ["merge_rows", "naive", "pictures", "table_of", "verdict_rows", "whole_stacks"]

_NODE = 8
_FRAMES = 22  # of a main thread of the real Megatron DPO job: 17 to 27
_PLACES = 40  # of main threads in one moment of a job that moves


def table_of(rnd: random.Random) -> dict[str, list[StackSite]]:
    """Places by role, as a job has them: main threads part late, threads and children are much alike."""
    outer = [
        f"function_{n} (megatron/core/pipeline_parallel/module_{n}.py:{100 + n})" for n in range(_FRAMES)
    ]

    def place(role: str, name: str, keep: int, leaf: int) -> StackSite:
        return StackSite(
            role, name, "other", (*outer[:keep], f"leaf_{leaf} (torch/nn/modules/module.py:{leaf})")
        )

    return {
        "main": [place("main", "", rnd.randrange(10, _FRAMES), n) for n in range(_PLACES)],
        "thread": [place("thread", f"Thread-# ({n})", 3, n) for n in range(6)],
        "child": [place("child", "DataLoader worker", 8, n) for n in range(12)],
    }


def _of_rank(table: dict[str, list[StackSite]], rnd: random.Random) -> list[StackSite]:
    return [rnd.choice(table["main"]), *table["thread"], *rnd.choices(table["child"], k=4)]


def pictures(
    size: int, table: dict[str, list[StackSite]], keys: dict[StackSite, str], seed: int = 0
) -> list[str]:
    """What the hubs of `size` ranks send when the classes are known: hashes and ranges, as JSON text."""
    rnd = random.Random(seed)
    texts = []
    for first in range(0, size, _NODE):
        ranks: dict[str, list[int]] = {}
        for rank in range(first, min(first + _NODE, size)):
            for place in dict.fromkeys(_of_rank(table, rnd)):
                ranks.setdefault(keys[place], []).append(rank)
        texts.append(json.dumps({"ranks": {key: format_spans(spans_of(who)) for key, who in ranks.items()}}))
    return texts


def whole_stacks(size: int, table: dict[str, list[StackSite]], seed: int = 0) -> Iterator[str]:
    """The same ranks as others send them: every stack of every rank in full."""
    rnd = random.Random(seed)
    for rank in range(size):
        threads = [
            {"role": place.role, "name": place.name, "frames": list(place.path)}
            for place in _of_rank(table, rnd)
        ]
        yield json.dumps({"rank": rank, "threads": threads})


def naive(texts: Iterator[str]) -> tuple[dict[tuple[str, ...], set[int]], float]:
    """Classes by comparing whole stacks; CPU seconds without those for making the input."""
    classes: dict[tuple[str, ...], set[int]] = {}
    spent = 0.0
    for text in texts:
        began = time.process_time()
        told = json.loads(text)
        for thread in told["threads"]:
            key = (thread["role"], thread["name"], *thread["frames"])
            classes.setdefault(key, set()).add(told["rank"])
        spent += time.process_time() - began
    return classes, spent


def merge_rows(sizes: dict[int, float], say: Callable[[str], None]) -> list[Row]:
    """`sizes`: ranks and the goal in CPU seconds."""
    rows = []
    for size, goal in sizes.items():
        say(f"merge of {size:,} ranks' stacks by hashes, and whole")
        table = table_of(random.Random(7))
        keys = {place: place.key for places in table.values() for place in places}
        known = {key: place for place, key in keys.items()}
        texts = pictures(size, table, keys)
        best = tree = float("inf")
        for _ in range(3):
            began = time.process_time()
            merged = merge(map(json.loads, texts), known)
            middle = time.process_time()
            root = merged.tree()
            best, tree = min(best, middle - began), min(tree, time.process_time() - middle)
        if merged.bad or merged.unknown or root.count != size:
            raise NotReady(f"the merge of {size} ranks is wrong: {merged.bad} bad, {root.count} ranks")
        classes, peer = naive(whole_stacks(size, table))
        if len(classes) != len(merged.ranks):
            raise NotReady(f"{len(merged.ranks)} classes by hashes, {len(classes)} by whole stacks")
        rows.append(
            Row(
                f"CPU of merging {size:,} ranks' stacks (main, 6 threads, 4 children each), sent as hashes; JSON read included",
                f"{best:.3f} s, and {tree:.3f} s for the prefix tree",
                f"whole stacks: {peer:.2f} s",
                times(best, peer),
                f"< {goal:g} s",
                "met" if best < goal else "missed",
                {"diag": best, "tree": tree, "peer": peer},
                f"P10 {size}",
            )
        )
    return rows


def verdict_rows(size: int, kinds: tuple[str, ...], say: Callable[[str], None]) -> list[Row]:
    rows = []
    for kind in kinds:
        say(f"verdict over {size:,} ranks: {kind}")
        command = [sys.executable, "-m", "tests.labs.bench.scale_job", str(size), kind]
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=bench_env(), capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            raise NotReady(f"scale_job {kind}: {done.stderr[-300:]}")
        told: dict[str, Any] = json.loads(done.stdout)
        seconds, peak = told["seconds"], told["peak_bytes"]
        parts = ", ".join(f"{name} {value:.2f}" for name, value in told["parts"].items())
        rows.append(
            Row(
                f"merge and verdict, {size:,} ranks with Flight Recorders (100 calls each, read twice), {kind}",
                f"{seconds:.2f} s ({parts}), peak {peak / 1e9:.2f} GB",
                "",
                "",
                "< 5 s, 2 GB",
                "met" if seconds < 5 and peak < 2e9 else "missed",
                {"diag": seconds, "peak_bytes": peak, **told["parts"]},
                f"verdict, {kind}",
            )
        )
    return rows
