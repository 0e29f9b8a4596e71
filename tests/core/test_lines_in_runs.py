"""Whether each line is read, or those that say nothing are handed on in runs and those of parsers as their facts: the same
is found, live and replayed, at the same moments."""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.detectors.rules.load import packaged
from diag.engine.engine import Engine
from diag.engine.importers.log_import import LogImport
from diag.engine.importers.log_reader import log_records
from diag.engine.importers.policy import LOG, RUN
from diag.model import Change, Placement, Record
from diag.outputs.report import report
from diag.sources.host import run as run_source
from diag.sources.logs.output import SOURCE, LineAssembler
from diag.sources.logs.prefilter import LineFilter, Says
from tests.labs.bench.captured import captured_lines
from tests.sources.test_prefilter import LOGS

TALK = b"worker fetched a batch\n" * 300


@dataclass
class Told:
    """What a log led to."""

    document: dict[str, Any]
    changes: list[Change]
    tails: list[list[str]]
    lines: int
    iteration: int | None


def told(engine: Engine, changes: list[Change]) -> Told:
    document = report(engine)
    document.pop("records", None)  # how many there were is no finding
    tails = [list(rank.tail) for rank in engine.job.ranks.values()]
    tails.append(list(engine.job.log.tail))
    return Told(document, changes, tails, engine.job.log.lines, engine.job.iteration)


def live(data: bytes, size: int, *, each: bool) -> Told:
    """As `diag run` reads it, of a job with one rank that fails in the end."""
    lines = LineAssembler("both", runs=not each, literals=packaged().literals)
    engine = RUN.engine()
    place = Placement(0, 0, 1, "node", 77, 5)
    records = [
        run_source.started(["torchrun", "train.py"], 76, "node"),
        run_source.rank_found(place, "", {}, distributed=False),
    ]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    payloads = [*(lines.feed(piece) for piece in pieces), lines.feed(b"", final=True)]
    records += [Record(SOURCE, payload) for payload in payloads if payload is not None]
    records.append(run_source.ended(1, "node"))
    changes: list[Change] = []
    for number, record in enumerate(records):
        changes += engine.feed(
            Record(record.source, record.payload, record.rank, record.host, at=1000 + number * 0.4)
        )
    changes += engine.advance(engine.now + 30)
    return told(engine, changes + engine.finish())


def replayed(data: bytes, *, each: bool) -> Told:
    """As `diag replay` reads it; each line by itself also in a record of its moment."""
    with pytest.MonkeyPatch.context() as patch:
        if each:
            patch.setattr(LineFilter, "parts", _each)
        given = log_records(
            io.BytesIO(data), "train.log", 0.0, literals=packaged().literals, together=not each
        )
        log = LogImport(given)
        engine = LOG.engine(None, log.parsers)
        changes: list[Change] = []
        for record in log:
            if run_source.is_another_attempt(record):
                engine, changes = LOG.engine(None, log.parsers), []
            changes += engine.feed(record)
    return told(engine, changes + engine.finish())


def _each(self: LineFilter, text: str) -> list[tuple[Says, int, str]]:
    return [(Says.MUCH, text.count("\n"), text[:-1])]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_real_logs_lead_to_the_same_live(log: Any) -> None:
    data = TALK + log.read_bytes() + TALK

    assert live(data, 8192, each=False) == live(data, 8192, each=True)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_real_logs_lead_to_the_same_replayed(log: Any) -> None:
    data = TALK + log.read_bytes() + TALK

    runs, each = replayed(data, each=False), replayed(data, each=True)

    assert runs.document == each.document
    assert runs.changes == each.changes


def _cut(begin: int, count: int) -> list[str]:
    return list(captured_lines()[begin : begin + count])


PIECES = st.one_of(
    st.builds(_cut, st.integers(0, len(captured_lines()) - 1), st.integers(1, 30)),
    st.builds(
        lambda count: [f"worker fetched batch {number}" for number in range(count)], st.integers(1, 60)
    ),
    st.builds(
        lambda first, count: [
            f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.{first}}}"
            for loss in itertools.islice(itertools.cycle(("0.693", "0.51", "nan", "9.25")), count)
        ],
        st.integers(1, 99),
        st.integers(1, 20),
    ),
)
MIXED = st.lists(PIECES, min_size=1, max_size=12).map(
    lambda pieces: "".join(f"{line}\n" for piece in pieces for line in piece).encode()
)


@settings(max_examples=30, deadline=None)
@given(MIXED, st.integers(200, 20_000))
def test_lines_of_many_logs_in_any_order_lead_to_the_same_live(data: bytes, size: int) -> None:
    assert live(data, size, each=False) == live(data, size, each=True)


@settings(max_examples=30, deadline=None)
@given(MIXED)
def test_lines_of_many_logs_in_any_order_lead_to_the_same_replayed(data: bytes) -> None:
    runs, each = replayed(data, each=False), replayed(data, each=True)

    # a run whose last lines have no time is of the time of what follows it
    for one in (runs, each):
        one.document["job"].pop("at")
        (one.document["log"] or {}).pop("ended", None)
    assert runs.document == each.document
    assert runs.changes == each.changes
