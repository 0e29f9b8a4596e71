"""Records on their way from any thread to the engine: in order, stamped, journalled, and reported as taken in."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from diag.agent.record_feed import RecordFeed
from diag.detectors.relations import Precedence
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader, JournalWriter, segments
from diag.model import Record
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS


def feed_of(journal: JournalWriter | None = None, most: int = 500) -> tuple[RecordFeed, Engine, list[str]]:
    engine, problems, clock = Engine(PARSERS, [], Precedence()), list[str](), itertools.count(1000)
    return RecordFeed(engine, lambda: float(next(clock)), journal, most, problems.append), engine, problems


def record() -> Record:
    return run_source.works("ranks", host="here")


def test_records_are_stamped_in_order_and_the_journal_has_them_as_the_engine_had(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    feed, engine, problems = feed_of(journal)
    for _ in range(3):
        feed.put(record())

    feed.take(feed.batch(0.0))
    assert feed.flush()
    journal.close()

    kept = [*JournalReader(segments(tmp_path))]
    assert (engine.records, problems, feed.waiting) == (3, [], 0)
    assert [(one.source, one.host, one.at) for one in kept] == [("run", "here", 1000.0 + n) for n in range(3)]


def test_who_waits_is_called_when_all_that_was_put_before_is_in() -> None:
    feed, engine, _ = feed_of()
    seen: list[int] = []
    feed.put(record(), lambda: seen.append(engine.records))
    feed.put(record())
    feed.put(None, lambda: seen.append(engine.records))
    feed.put(record())

    batch = feed.batch(0.0)
    assert seen == []  # nothing is in yet
    feed.take(batch)

    assert seen == [1, 2] and engine.records == 3


def test_batch_is_bounded_and_of_nothing_it_waits_no_longer_than_asked() -> None:
    feed, *_ = feed_of(most=2)
    for _ in range(3):
        feed.put(record())

    sizes = [len(feed.batch(0.0)) for _ in range(3)]
    began = time.monotonic()
    none = feed.batch(0.05)

    assert sizes == [2, 1, 0] and none == [] and 0.04 <= time.monotonic() - began < 5.0


def test_journal_that_cannot_be_written_is_reported_once_and_the_engine_is_fed(tmp_path: Path) -> None:
    feed, engine, problems = feed_of(JournalWriter(tmp_path / "gone"))
    for _ in range(3):
        feed.put(record())

    feed.take(feed.batch(0.0))

    assert engine.records == 3 and len(problems) == 1 and "No such file" in problems[0]


def test_who_hurries_ends_the_wait_for_a_record() -> None:
    feed, engine, _ = feed_of()
    feed.hurry()

    began = time.monotonic()
    batch = feed.batch(30.0)

    assert time.monotonic() - began < 10.0
    feed.take(batch)
    assert engine.records == 0
