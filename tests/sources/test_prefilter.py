"""Lines that nobody has a word for stay in one piece: what is told and found is the same with and without."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.detectors.findings import load
from diag.engine.importers.log_import import LogImport
from diag.engine.importers.log_reader import log_records
from diag.engine.replay import replay_records
from diag.knowledge.data_samples import MARKS
from diag.model import Record
from diag.model.observations import LogLine, NcclPlainLines, Observation, PlainLines, QuietLines
from diag.outputs.report import report
from diag.sources.logs import output
from diag.sources.logs.output import LineAssembler
from diag.sources.logs.prefilter import ERRORS, WORDS, LineFilter, Says

CAPTURES = Path(__file__).parents[1] / "captures"
LOGS = sorted(
    [*CAPTURES.glob("logs/*.log"), *CAPTURES.glob("logs/nccl/*.log"), *CAPTURES.glob("loose/*/*.log")]
)


def facts_of(data: bytes, *, whole: bool) -> list[Observation]:
    lines = LineAssembler("log", whole=whole, runs=whole)
    payloads = [lines.feed(data[at : at + 4096]) for at in range(0, len(data), 4096)] + [
        lines.feed(b"", final=True)
    ]
    return [fact for payload in payloads if payload for fact in output.parse(Record(output.SOURCE, payload))]


def telling(facts: list[Observation]) -> list[Observation]:
    return [fact for fact in facts if not isinstance(fact, (LogLine, QuietLines, PlainLines, NcclPlainLines))]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_real_logs_tell_the_same_with_and_without(log: Path) -> None:
    data = log.read_bytes()

    whole = facts_of(data, whole=True)

    assert telling(whole) == telling(facts_of(data, whole=False))
    last = [fact for fact in whole if isinstance(fact, (LogLine, PlainLines))][-1]
    end = last.number + (last.count - 1 if isinstance(last, PlainLines) else 0)
    assert end == data.count(b"\n") + (0 if data.endswith(b"\n") else 1)


def test_line_that_says_nothing_is_in_a_run_and_an_error_with_what_stands_below_it_is_not() -> None:
    # given a hundred lines of a program's own talk with one error in the middle
    lines = [f"worker fetched batch {number}" for number in range(100)]
    lines[50] = "OSError: [Errno 28] No space left on device"
    text = "".join(f"{line}\n" for line in lines)

    # when it comes in two pieces, the second right behind another error
    pieces = LineFilter()
    parts = [*pieces.parts(f"{text}ValueError: x\n"), *pieces.parts(text)]

    # then the first lines of the log are read as well, of the second piece those below the error
    runs = [piece.split("\n") for says, count, piece in parts if says is Says.NOTHING]
    assert runs == [lines[20:50], lines[61:], lines[10:50], lines[61:]]
    assert [count for says, count, _ in parts if says is Says.NOTHING] == [len(run) for run in runs]


def test_middle_of_a_long_run_is_left_out_of_the_record_of_a_live_job_and_counted() -> None:
    # given a loader's talk, in the middle of which one line is of another shape, and whether the words of rules are known
    lines = [f"worker fetched batch {number}" for number in range(2000)]
    lines[1000] = "worker begins epoch 7"
    data = "".join(f"{line}\n" for line in lines).encode()

    def run_of(known: bool) -> PlainLines:
        payload = LineAssembler("both", runs=True, literals=("shard",) if known else ()).feed(data)
        assert payload is not None and payload.get("dropped", 0) == 0
        (run,) = (f for f in output.parse(Record(output.SOURCE, payload)) if isinstance(f, PlainLines))
        return run

    # then
    short, whole = run_of(True), run_of(False)
    assert short.count == whole.count == 1980 and short.last == whole.last == tuple(lines[-200:])
    assert whole.text.split("\n") == lines[20:]
    kept = short.text.split("\n")
    assert len(kept) < 400 and kept[:100] == lines[20:120] and "worker begins epoch 7" in kept


def test_each_word_that_a_detector_looks_for_in_lines_is_one_of_an_error() -> None:
    memory = [word for row in load("memory/lines.yaml").values() for word in row["words"]]
    saves = [word for rows in load("checkpoint/lines.yaml").values() for row in rows for word in row["words"]]

    assert [word for word in (*memory, *saves, *MARKS) if not any(error in word for error in ERRORS)] == []


WORDED = st.sampled_from((*WORDS, *ERRORS, "fetched", " batch", "7", "  ", "é", "训", "x" * 2000))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(WORDED, max_size=5).map("".join), max_size=60), st.integers(1, 60))
def test_no_line_with_a_word_is_in_a_run_and_nothing_is_lost(lines: list[str], cut: int) -> None:
    lines = [line.replace("\n", "") for line in lines]
    pieces = LineFilter()

    parts = [
        part
        for some in (lines[:cut], lines[cut:])
        if some
        for part in pieces.parts("".join(f"{line}\n" for line in some))
    ]

    assert [line for _, _, piece in parts for line in piece.split("\n")] == lines
    runs = [piece for says, count, piece in parts if says is Says.NOTHING]
    assert not [word for word in (*WORDS, *ERRORS) for piece in runs if word in piece]


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
def test_runs_tell_the_same_as_each_line(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()

    assert telling(facts_of(data, whole=True)) == telling(facts_of(data, whole=False))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_same_is_found_in_real_logs_with_and_without(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a log in which hundreds of lines of somebody's own talk stand before and behind what was captured
    talk = b"worker fetched a batch\n" * 300
    path = log.parent / log.name
    with_runs = findings_of(path.name, talk + path.read_bytes() + talk)

    # when each line is read by itself
    monkeypatch.setattr(LineFilter, "parts", lambda self, text: [(Says.MUCH, text.count("\n"), text[:-1])])

    # then
    assert findings_of(path.name, talk + path.read_bytes() + talk) == with_runs


def findings_of(name: str, data: bytes) -> tuple[str, list[object]]:
    engine, _ = replay_records(LogImport(log_records(io.BytesIO(data), name, 1e9)))
    document = report(engine)
    return document["job"]["state"], [document["findings"], document["not_checked"], document["log"]]
