"""What a target is, and recorded input that several of them begin with."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader
from diag.model import Placement, Record
from diag.outputs.report import report
from diag.outputs.terminal.text import report_text
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS
from tests.labs.fuzz.mutate import Form

__all__ = ["CAPTURES", "CONTROLS", "Target", "of_files", "payloads", "story", "told"]

CAPTURES = Path(__file__).parents[3] / "captures"
CONTROLS = frozenset("\x00\x07\x1b\x9b\u202e")
_LARGEST = 40_000  # bytes of one seed: larger ones make an execution slow and reach nothing new


@dataclass(frozen=True)
class Target:
    """`run` is given one input and an empty folder of its own; it returns, or raises what is a fault. What a
    reader is documented to raise is caught there. `covers`: modules whose branches guide the search."""

    name: str
    reads: str
    form: Form
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes, Path], object]


def of_files(*patterns: str, most: int = 40, packed: bool = False) -> Callable[[], list[bytes]]:
    """Seeds from tests/captures: the first bytes of each file that matches."""

    def read() -> list[bytes]:
        found = [path for pattern in patterns for path in sorted(CAPTURES.glob(pattern)) if path.is_file()]
        step = max(1, len(found) // most)
        return [path.read_bytes()[:_LARGEST] for path in found[::step]]

    return read


@functools.cache
def _recorded() -> dict[str, list[str]]:
    """By source: payloads of different shapes, as they stand in journals of real runs."""
    found: dict[str, dict[tuple[Any, ...], str]] = defaultdict(dict)
    folders = (
        "gpu-drills/*",
        "gpu-loops/log-loss-alone",
        "gpu-loops/starved",
        "h200-live/loop-*",
        "h200-live/data-hang-ras",
        "kernel-waits/thread-joins",
        "h200-net/*node0",
        "memory/v2",
        "memory/saves-that-fit",
        "ray/*",
        "sources/rdma",
        "sources/written/two-ranks",
        "steps/slow-from-step",
    )
    for path in sorted(path for folder in folders for path in CAPTURES.glob(f"{folder}/journal-*.jsonl.gz")):
        for record in JournalReader([path]):
            text = json.dumps(record.payload)
            if len(text) < _LARGEST:
                shape = (
                    *sorted(record.payload),
                    str(record.payload.get("event", record.payload.get("failed", ""))),
                    len(text) // 400,
                )
                found[record.source].setdefault(shape, text)
    return {source: list(texts.values()) for source, texts in found.items()}


def payloads(source: str, most: int = 30) -> list[str]:
    texts = _recorded().get(source, [])
    return texts[:: max(1, len(texts) // most)][:most]


@functools.cache
def story() -> tuple[Record, ...]:
    """Two ranks of a job that has begun, with pids that recorded payloads do not have."""
    made = [run_source.started(["torchrun", "train.py"], 10, "node0", 2)]
    made += [
        run_source.rank_found(Placement(rank, rank, 2, "node0", 20 + rank, 5), "python train.py", {})
        for rank in (0, 1)
    ]
    made.append(
        Record(
            "output", {"stream": "stdout", "lines": [["[INFO:swift] The training of Epoch 0 starts...", 0]]}
        )
    )
    return tuple(
        Record(one.source, one.payload, one.rank, one.host, 1000.0 + at, 1000.0 + at)
        for at, one in enumerate(made)
    )


def told(records: Iterable[Record], engine: Engine | None = None) -> Engine:
    """An engine that was told a story and then these, and what it says of them, as JSON and as text."""
    if engine is None:
        engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
        for record in story():
            engine.feed(record)
    for record in records:
        engine.feed(record)
    engine.advance(engine.now + 3.0)
    engine.advance(engine.now + 700.0)  # a gap that is not filled with checks: one that is late
    engine.finish()
    document = report(engine)
    json.dumps(document)
    text = report_text(document, width=100)
    assert not CONTROLS & set(text), "control characters in the report"
    return engine
