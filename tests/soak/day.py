"""A day of told time through diag's engine, as fast as it goes: what the state holds after each hour, and what a minute costs."""

from __future__ import annotations

import json
import os
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import __version__
from diag.capture import JournalWriter
from diag.detectors import make_detectors
from diag.engine import CHECK_SECONDS, Engine, report
from diag.model import Change, ChangeKind
from diag.outputs.prometheus import exposition, families
from diag.outputs.view import Counters
from diag.rules.load import for_a_run
from diag.sources.parsers import PARSERS
from tests.hubview import AloneHub
from tests.soak.node import Node
from tests.soak.sampling import Rows
from tests.soak.sizes import cache_entries, held

__all__ = ["Hour", "soak_told"]

_BEGAN = 1_795_300_000.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_AFTER_RESTART = 120.0  # seconds in which a restart explains what is found


@dataclass(frozen=True, slots=True)
class Hour:
    """After so many told hours. Memory in bytes (`traced`: of Python alone, 0 when not traced); CPU in milliseconds a told minute:
    of taking records in, of the checks, of a scrape each minute."""

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


def soak_told(output: Path, hours: float, *, each: float = 1.0, trace: bool = False) -> dict[str, Any]:
    """Leaves day.csv (a row each `each` hours) and day.json in `output`; returns what day.json has: per hour the sizes of the state's
    parts and the entries of its containers, the functools caches, and the findings that no restart explains."""
    output.mkdir(parents=True, exist_ok=True)
    engine = Engine(PARSERS, make_detectors(for_a_run(None, print)))
    journal_folder = output / "journal"
    journal_folder.mkdir(exist_ok=True)
    for old in journal_folder.glob("journal-*"):
        old.unlink()
    journal = JournalWriter(journal_folder)
    view, node, rows = _View(engine), Node(), Rows(output / "day.csv", Hour)
    taking = checking = scraping = 0.0
    records, changes, told = 0, [], []
    next_check, next_scrape, next_row = _BEGAN, _BEGAN, _BEGAN + each * 3600
    if trace:
        tracemalloc.start()
    for record in node.records(_BEGAN, hours * 3600 + 1):
        began = time.process_time()
        if record.at >= next_check:  # the same checks that `feed` would run first: told apart for their cost
            changes += engine.advance(record.at)
            next_check = record.at + CHECK_SECONDS / 2
            checking += time.process_time() - began
            began = time.process_time()
        records += 1
        journal.write(record)
        changes += engine.feed(record)
        taking += time.process_time() - began
        if record.at >= next_scrape:
            next_scrape += 60.0
            began = time.process_time()
            exposition(families(view))
            json.dumps([report(engine), engine.timeline.to_json(engine.job)])
            scraping += time.process_time() - began
        if record.at >= next_row:
            hour = (next_row - _BEGAN) / 3600
            next_row += each * 3600
            parts = _parts(engine)
            minutes = each * 60
            rows.add(Hour(
                round(hour, 3), records, _rss(), tracemalloc.get_traced_memory()[0] if trace else 0,
                sum(part["bytes"] for part in parts.values()), sum(part["objects"] for part in parts.values()),
                round(1000 * taking / minutes, 3), round(1000 * checking / minutes, 3), round(1000 * scraping / minutes, 3),
                sum(path.stat().st_size for path in journal_folder.iterdir()),
            ))  # fmt: skip
            told.append({"hour": round(hour, 3), "parts": parts})
            taking = checking = scraping = 0.0
            (output / "day.json").write_text(json.dumps(_outcome(told, changes, node)))
    journal.close()
    rows.close()
    outcome = _outcome(told, changes, node)
    (output / "day.json").write_text(json.dumps(outcome))
    return outcome


def _outcome(told: list[dict[str, Any]], changes: list[Change], node: Node) -> dict[str, Any]:
    opened = [change for change in changes if change.kind is ChangeKind.OPENED]
    false = [change for change in opened if not any(0 <= change.at - at < _AFTER_RESTART for at in node.restarts)]
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
    roots |= {f"engine.{name}": getattr(engine, name) for name in ("_past", "_open", "alone", "opened_total")}
    found = {}
    for name, root in roots.items():
        part = held(root, seen)
        entries = {path or ".": count for path, count in part.entries.items() if count}
        found[name] = {"bytes": part.size, "objects": part.objects, "entries": dict(sorted(entries.items()))}
    return found
