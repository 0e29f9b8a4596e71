"""Lines that nobody has a word for stay in one piece: what is told and found is the same with and without."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.engine.importers.log_import import LogImport
from diag.engine.importers.log_reader import log_records
from diag.engine.replay import replay_records
from diag.model import Record
from diag.model.observations import LogLine, NcclPlainLines, Observation, PlainLines
from diag.outputs.report import report
from diag.sources.logs import output
from diag.sources.logs.output import LineAssembler
from diag.sources.logs.prefilter import plain_lines

CAPTURES = Path(__file__).parents[1] / "captures"
LOGS = sorted(
    [*CAPTURES.glob("logs/*.log"), *CAPTURES.glob("logs/nccl/*.log"), *CAPTURES.glob("loose/*/*.log")]
)


def facts_of(data: bytes, *, whole: bool) -> list[Observation]:
    lines = LineAssembler("log", whole=whole)
    payloads = [lines.feed(data[at : at + 4096]) for at in range(0, len(data), 4096)] + [
        lines.feed(b"", final=True)
    ]
    return [fact for payload in payloads if payload for fact in output.parse(Record(output.SOURCE, payload))]


def telling(facts: list[Observation]) -> list[Observation]:
    return [fact for fact in facts if not isinstance(fact, (LogLine, PlainLines, NcclPlainLines))]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_real_logs_tell_the_same_with_and_without(log: Path) -> None:
    data = log.read_bytes()

    whole = facts_of(data, whole=True)

    assert telling(whole) == telling(facts_of(data, whole=False))
    last = [fact for fact in whole if isinstance(fact, LogLine)][-1]
    assert last.number == data.count(b"\n") + (0 if data.endswith(b"\n") else 1)


def test_line_that_says_nothing_is_in_a_run_and_an_error_with_what_stands_around_it_is_not() -> None:
    # given a hundred lines of a program's own talk with one error in the middle
    lines = [f"worker fetched batch {number}" for number in range(100)]
    lines[50] = "OSError: [Errno 28] No space left on device"
    text = "".join(f"{line}\n" for line in lines)

    # when
    runs = [text[begin:end].splitlines() for begin, end in plain_lines(text)]

    # then
    assert runs == [lines[10:40], lines[61:90]]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "nothing to see",
                "x" * 70_000,
                "RuntimeError: boom",
                "[rank1]: y",
                "\r50%|##| 1/2 [00:01<?]",
                "",
                "\x00\xff",
                "iteration 3/4 |",
            ]
        ),
        max_size=60,
    )
)
def test_runs_are_whole_lines_in_order_and_nothing_is_lost(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)

    runs = list(plain_lines(text))

    assert all(text[end - 1] == "\n" and (begin == 0 or text[begin - 1] == "\n") for begin, end in runs)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(runs))
    data = text.encode()
    assert telling(facts_of(data, whole=True)) == telling(facts_of(data, whole=False))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_same_is_found_in_real_logs_with_and_without(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a log in which hundreds of lines of somebody's own talk stand before and behind what was captured
    talk = b"worker fetched a batch\n" * 300
    path = log.parent / log.name
    with_runs = findings_of(path.name, talk + path.read_bytes() + talk)

    # when each line is read by itself
    monkeypatch.setattr(output, "plain_lines", lambda text: ())

    # then
    assert findings_of(path.name, talk + path.read_bytes() + talk) == with_runs


def findings_of(name: str, data: bytes) -> tuple[str, list[object]]:
    engine, _ = replay_records(LogImport(log_records(io.BytesIO(data), name, 1e9)))
    document = report(engine)
    return document["job"]["state"], [document["findings"], document["not_checked"], document["log"]]
