"""A day of told time through diag's engine, as fast as it goes: what the state holds after each hour, and
what a minute costs."""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from diag import __version__
from diag.detectors import make_detectors
from diag.detectors.contract import Detector
from diag.detectors.precedence import PRECEDENCE
from diag.detectors.rules.load import for_a_run
from diag.engine.engine import CHECK_SECONDS, Engine
from diag.engine.journal import JournalWriter
from diag.model import Change, ChangeKind, Record
from diag.outputs.prometheus.prometheus import exposition, families
from diag.outputs.report import report
from diag.outputs.view.view import Counters
from diag.sources.parsers import PARSERS
from tests.hubview import AloneHub
from tests.labs.soak.node import Node
from tests.labs.soak.sampling import Rows
from tests.labs.soak.sizes import cache_entries, held

__all__ = ["Hour", "soak_told"]

_BEGAN = 1_795_300_000.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_AFTER_RESTART = 120.0  # seconds in which a restart explains what is found


@dataclass(frozen=True, slots=True)
class Hour:
    """After so many told hours. Memory in bytes (`traced`: of Python alone, 0: not traced); CPU in
    milliseconds a told minute: of taking records in, of the checks, of a scrape each minute."""

    hour: float
    records: int
    rss: int
    traced: int
    state: int
    objects: int
    taking: float
    checking: float
    scraping: float
    journal: int


class _View(AloneHub):
    """What the exposition needs of a hub."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.RLock()
        self.version = __version__
        self.counters = Counters()


def soak_told(
    output: Path,
    hours: float,
    *,
    each: float = 1.0,
    ranks: int = 8,
    step_seconds: float = 1.0,
    addresses: int = 512,
    trace: bool = False,
    more: Sequence[Detector] = (),
) -> dict[str, Any]:
    """Leaves day.csv (a row each `each` hours) and day.json in `output`; returns what day.json has: per hour
    the sizes of the state's parts and the entries of its containers, the functools caches, and the findings
    that no restart explains. `more`: detectors beside diag's own."""
    output.mkdir(parents=True, exist_ok=True)
    engine = Engine(PARSERS, [*make_detectors(for_a_run(None, print)), *more], PRECEDENCE)
    journal_folder = output / "journal"
    journal_folder.mkdir(exist_ok=True)
    for old in journal_folder.glob("journal-*"):
        old.unlink()
    journal = JournalWriter(journal_folder)
    view, node, rows = (
        _View(engine),
        Node(ranks, step_seconds=step_seconds, addresses=addresses),
        Rows(output / "day.csv", Hour),
    )
    changes: list[Change] = []
    told: list[dict[str, Any]] = []
    taking = checking = scraping = 0.0
    records, next_scrape, next_row = 0, _BEGAN, _BEGAN + each * 3600
    pace: list[float] = []  # what the machine makes of the same work, minute by minute
    usual = 0.0
    if trace:
        tracemalloc.start()
    for now, batch in _seconds(node.records(_BEGAN, hours * 3600 + 1)):
        clocks = [time.process_time()]
        for record in batch:
            journal.write(record)
            changes += engine.feed(record)
        clocks.append(time.process_time())
        changes += engine.advance(now)
        clocks.append(time.process_time())
        if now >= next_scrape:
            next_scrape += 60.0
            pace.append(_reference())
            exposition(families(view))
            json.dumps([report(engine), engine.timeline.to_json(engine.job)])
        clocks.append(time.process_time())
        records += len(batch)
        taking, checking, scraping = (
            spent + later - early
            for spent, (early, later) in zip((taking, checking, scraping), pairwise(clocks), strict=True)
        )
        if now >= next_row:
            hour = round((next_row - _BEGAN) / 3600, 3)
            next_row += each * 3600
            made = statistics.median(pace) if pace else 0.0
            usual = usual or made
            slower = made / usual if usual else 1.0
            pace.clear()
            rows.add(
                _hour(
                    hour,
                    records,
                    _parts(engine),
                    [1000 * spent / (each * 60) / slower for spent in (taking, checking, scraping)],
                    journal_folder,
                )
            )
            told.append({"hour": hour, "parts": _parts(engine)})
            taking = checking = scraping = 0.0
            (output / "day.json").write_text(json.dumps(_outcome(told, changes, node)))
    journal.close()
    rows.close()
    outcome = _outcome(told, changes, node)
    (output / "day.json").write_text(json.dumps(outcome))
    return outcome


def _reference() -> float:
    """CPU seconds of the same work each time: other programs on the machine make any work dearer."""
    began = time.process_time()
    sum(index * index for index in range(20_000))
    return time.process_time() - began


def _seconds(records: Iterable[Record]) -> Iterator[tuple[float, list[Record]]]:
    """The records between two checks, with the told time of the later check: a clock that is read for each
    record would cost more than the record."""
    batch: list[Record] = []
    due = 0.0
    for record in records:
        due = due or math.ceil(record.at / CHECK_SECONDS) * CHECK_SECONDS
        while record.at >= due:
            yield due, batch
            batch, due = [], due + CHECK_SECONDS
        batch.append(record)


def _hour(hour: float, records: int, parts: Mapping[str, Any], costs: Sequence[float], journal: Path) -> Hour:
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    state, objects = (sum(part[name] for part in parts.values()) for name in ("bytes", "objects"))
    size = sum(path.stat().st_size for path in journal.iterdir())
    return Hour(hour, records, _rss(), traced, state, objects, *(round(cost, 3) for cost in costs), size)


def _outcome(told: list[dict[str, Any]], changes: list[Change], node: Node) -> dict[str, Any]:
    opened = [change for change in changes if change.kind is ChangeKind.OPENED]
    false = [
        change for change in opened if not any(0 <= change.at - at < _AFTER_RESTART for at in node.restarts)
    ]
    return {
        "hours": told, "caches": cache_entries(), "opened": Counter(change.finding.id for change in opened),
        "unexplained": [f"{change.finding.id} after {change.at - _BEGAN:.0f} s: {change.finding.summary}" for change in false],
        "restarts": len(node.restarts),
    }  # fmt: skip


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _parts(engine: Engine) -> dict[str, dict[str, Any]]:
    """By name: the job's state by attribute, the time line, each detector, and the engine's own lists."""
    seen: set[int] = set()
    roots: dict[str, Any] = {f"job.{name}": value for name, value in vars(engine.job).items()}
    roots["timeline"] = engine.timeline
    roots |= {f"detector {detector.name}": detector for detector in engine._detectors}
    roots |= {
        f"engine.{name}": getattr(engine, name) for name in ("_past", "_open", "withheld", "opened_total")
    }
    found = {}
    for name, root in roots.items():
        part = held(root, seen)
        entries = {path or ".": count for path, count in part.entries.items() if count}
        found[name] = {"bytes": part.size, "objects": part.objects, "entries": dict(sorted(entries.items()))}
    return found
