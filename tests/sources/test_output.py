"""Bytes into lines: any cut of any bytes, bars, CRLF, lines of any length; files that are truncated, rotated
and deleted."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Iteration, LogLine, Observation, Unparsed
from diag.sources.logs import line_facts, output
from diag.sources.logs.output import MAX_LINE_CHARS, MAX_LINES_PER_RECORD, FileFollower, LineAssembler

LOGS = Path(__file__).parents[1] / "captures" / "logs"
# What terminals and jobs make lines of, and what breaks decoders: torn UTF-8, NUL, a lone continuation byte.
PIECES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\r\r\n",
        b"a",
        b"Train:  12%|",
        b" ",
        b"\xc3\xa9",
        b"\xc3",
        b"\xa9",
        b"\xf0\x9f",
        b"\xff",
        b"\0",
    ]
)


def lines_of(chunks: list[bytes]) -> list[list[Any]]:
    assembler = LineAssembler("stdout")
    payloads = [assembler.feed(chunk) for chunk in chunks] + [assembler.feed(b"", final=True)]
    return [line for payload in payloads if payload for line in payload["lines"]]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    points = sorted({min(point, len(data)) for point in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(points)]


def texts(lines: list[list[Any]], *, bar: bool) -> list[str]:
    return [text for text, is_bar in lines if bool(is_bar) is bar]


def is_in_order(few: list[str], many: list[str]) -> bool:
    rest = iter(many)
    return all(one in rest for one in few)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(PIECES | st.binary(max_size=6), max_size=40),
    at=st.lists(st.integers(0, 200), max_size=12),
)
def test_lines_are_the_same_however_the_bytes_are_cut(pieces: list[bytes], at: list[int]) -> None:
    data = b"".join(pieces)

    whole, chunked = lines_of([data]), lines_of(cut(data, at))
    byte_by_byte = lines_of([bytes([byte]) for byte in data])

    assert texts(chunked, bar=False) == texts(whole, bar=False) == texts(byte_by_byte, bar=False)
    # of a bar that is redrawn within one chunk only the last drawing is kept
    assert is_in_order(texts(whole, bar=True), texts(chunked, bar=True))
    assert is_in_order(texts(chunked, bar=True), texts(byte_by_byte, bar=True))


@settings(max_examples=30, deadline=None)
@given(at=st.lists(st.integers(0, 31_000), max_size=20))
def test_real_log_with_bars_is_the_same_however_it_is_cut(at: list[int]) -> None:
    data = (LOGS / "megatron_dpo_4.6.0.log").read_bytes()

    whole, chunked = lines_of([data]), lines_of(cut(data, at))

    assert texts(chunked, bar=False) == texts(whole, bar=False)
    assert is_in_order(texts(whole, bar=True), texts(chunked, bar=True))


@pytest.mark.parametrize("chunks", [[b"one\r\ntwo\r\n"], [b"one\r", b"\ntwo", b"\r", b"\n"]])
def test_crlf_ends_a_line_and_draws_no_bar(chunks: list[bytes]) -> None:
    assert lines_of(chunks) == [["one", 0], ["two", 0]]


def test_bar_that_is_redrawn_is_told_while_it_still_runs() -> None:
    # given a bar that tqdm redraws
    assembler = LineAssembler("stderr")

    # when it is drawn a second time
    first = assembler.feed(b"\rTrain:  12%|#   | 1/8 [00:00<00:04]")
    second = assembler.feed(b"\rTrain:  25%|##  | 2/8 [00:01<00:03]")

    # then the first drawing is complete, and the second waits for its end
    assert first is None
    assert second is not None
    assert second["lines"] == [["Train:  12%|#   | 1/8 [00:00<00:04]", 1]]


def test_blanks_that_clear_a_bar_are_nothing() -> None:
    assert lines_of([b"\r" + b" " * 80 + b"\rdone\n"]) == [["done", 0]]


def test_last_line_without_an_end_is_told_at_the_end() -> None:
    assert lines_of([b"Segmentation fault"]) == [["Segmentation fault", 0]]
    assert lines_of([b"50%|#\r"]) == [["50%|#", 1]]


@pytest.mark.parametrize("size", [1 << 16, 10_000, 11 << 20])
def test_line_of_ten_megabytes_is_cut_and_says_so_in_bounded_memory(size: int) -> None:
    # given a line of 10 MB in chunks
    assembler = LineAssembler("stdout")
    data = b"x" * (10 << 20) + b"\nnext\n"

    # when it is fed
    longest = 0
    found: list[Any] = []
    for start in range(0, len(data), size):
        payload = assembler.feed(data[start : start + size])
        longest = max(longest, len(assembler._rest))
        found += payload["lines"] if payload else []

    # then what is left out is counted, and the next line is whole
    assert found == [
        ["x" * MAX_LINE_CHARS + f" ... [{(10 << 20) - MAX_LINE_CHARS} characters cut]", 0],
        ["next", 0],
    ]
    assert longest <= MAX_LINE_CHARS + 1


def test_cut_of_a_long_bar_is_not_told_of_the_line_after_it() -> None:
    assert lines_of([b"x" * 80_000, b"y\r", b"short\n"])[-1] == ["short", 0]


def test_bytes_that_are_no_utf8_are_shown_as_such() -> None:
    assert lines_of([b"loss \xff\xfe ok\xc3", b"\xa9\n"]) == [["loss \\xff\\xfe ok\xe9", 0]]


def test_burst_keeps_its_begin_and_its_end_and_counts_the_rest() -> None:
    payload = LineAssembler("stdout").feed(
        b"".join(b"%d\n" % number for number in range(MAX_LINES_PER_RECORD + 500))
    )

    assert payload is not None
    assert payload["dropped"] == 500
    assert payload["lines"][0] == ["0", 0] and payload["lines"][-1] == [str(MAX_LINES_PER_RECORD + 499), 0]


# --- files
# -----------------------------------------------------------------------------------------------------


def read_all(follower: FileFollower) -> list[str]:
    found: list[str] = []
    while (payload := follower.read_new()) is not None:
        found += [text for text, _ in payload["lines"]]
    return found


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.log"
    path.write_text("old\n")
    return path


def test_growing_file_is_followed_from_its_begin_or_from_its_end(log: Path) -> None:
    begin, end = FileFollower(log, "rank0"), FileFollower(log, "rank0", from_end=True)

    append(log, "new\nha")

    assert (read_all(begin), read_all(end)) == (["old", "new"], ["new"])
    append(log, "lf\n")
    assert read_all(end) == ["half"]


def test_truncated_file_starts_over_and_its_torn_line_is_not_glued_to_the_next(log: Path) -> None:
    follower = FileFollower(log, "rank0")
    append(log, "torn line that nobody ended")
    assert read_all(follower) == ["old"]

    log.write_text("fresh\n")

    assert read_all(follower) == ["torn line that nobody ended", "fresh"]


def test_rotated_file_is_read_to_its_end_and_then_the_new_one(log: Path) -> None:
    follower = FileFollower(log, "rank0")
    assert read_all(follower) == ["old"]

    append(log, "last words\n")
    log.rename(log.with_suffix(".1"))
    log.write_text("after rotation, longer than the old file was\n")

    assert read_all(follower) == ["last words", "after rotation, longer than the old file was"]


def test_deleted_file_is_read_on_while_somebody_writes_to_it(log: Path) -> None:
    with log.open("a") as writer:
        follower = FileFollower(log, "rank0")
        log.unlink()

        print("still here", file=writer, flush=True)

        assert read_all(follower) == ["old", "still here"]
        assert follower.read_new() is None


def test_rest_of_a_file_is_all_of_it_and_the_unfinished_line_too(log: Path) -> None:
    follower = FileFollower(log, "rank0")
    follower.CHUNK = 1000
    append(log, "x" * 700 + "\n" + "y" * 700 + "\nRuntimeError: the last word")

    found = [text for payload in follower.read_rest() for text, _ in payload["lines"]]

    assert found == ["old", "x" * 700, "y" * 700, "RuntimeError: the last word"]
    assert list(follower.read_rest()) == []


@pytest.mark.timeout(20)
def test_fifo_in_the_place_of_a_log_holds_nobody_up(log: Path) -> None:
    """Opening it waits for a writer, which may never come: `diag run` did not end."""
    log.write_text("first\n")
    follower = FileFollower(log, "rank0")
    assert read_all(follower) == ["first"]
    log.rename(log.with_name("old"))
    os.mkfifo(log)

    assert read_all(follower) == [] and list(follower.read_rest()) == []
    with pytest.raises(OSError, match="no regular file"):
        FileFollower(log, "rank0")

    log.unlink()
    log.write_text("second\n")
    assert read_all(follower) == ["second"]


def test_follower_that_is_closed_gives_its_descriptor_back(log: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    FileFollower(log, "rank0").close()

    assert len(os.listdir("/proc/self/fd")) == before


# --- facts
# -----------------------------------------------------------------------------------------------------


def facts(*lines: tuple[str, int], rank: int | None = None) -> list[Observation]:
    payload = {"stream": "stdout", "lines": [list(line) for line in lines]}
    return list(output.parse(Record(output.SOURCE, payload, rank=rank)))


def test_line_is_told_first_and_then_what_it_says() -> None:
    text = "{'loss': 0.69314718, 'grad_norm': 1.10422194, 'iteration': '1/12', 'elapsed_time': '0s'}"

    said, step = facts((text, 0), rank=1)

    assert said == LogLine(1, "stdout", text)
    assert isinstance(step, Iteration)
    assert (step.iteration, step.total, step.metrics) == (
        1,
        12,
        (("loss", 0.69314718), ("grad_norm", 1.10422194)),
    )


def test_rank_that_torch_puts_before_a_line_outranks_the_files() -> None:
    assert (
        facts(
            ("[rank1]: RuntimeError: DataLoader worker (pid 20352) is killed by signal: Killed.", 0), rank=0
        )[0].rank
        == 1
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["stream", "lines", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    payload=JSON | st.fixed_dictionaries({"lines": st.lists(JSON | st.tuples(st.text(), JSON), max_size=5)})
)
def test_no_payload_raises(payload: Any) -> None:
    for fact in output.parse(Record(output.SOURCE, payload)):
        assert isinstance(fact, (Unparsed, LogLine)) or fact is not None


# Words of which lines with facts are made, so that the readers behind them are reached.
WORDS = st.sampled_from(
    [
        "{'loss': ",
        "'iteration': '",
        "'global_step/max_steps': '",
        "1/8'",
        "}",
        "{",
        ", ",
        "nan",
        "1e999",
        "9" * 400,
        "9" * 5000,
        "-",
        "iteration ",
        " iteration       1/       8 | ",
        "consumed samples:            8 | ",
        "lm loss: 1.2.3 | ",
        "0.5 |",
        "|",
        ":",
        " ",
        "The training of Epoch ",
        " starts...",
        "saving checkpoint at iteration ",
        " to /out",
        "Train:",
        " 12%|",
        "| 1/8 [",
        "Map:",
        "\x00",
        "failed (exitcode: ",
        ") local_rank: 1 (pid: ",
        "  exitcode  : ",
        " (pid: 7)",
        "  rank      : ",
        " (local_rank: 0)",
        "[rank",
        "]:",
        "gpu-0:1:2 [0] NCCL INFO ",
        " NCCL ",
        "[2026-11-20 22:48:14] ",
        "\u0661",
        "\ud800",
    ]
)


@settings(max_examples=1000, deadline=None)
@given(words=st.lists(WORDS | st.text(max_size=5), max_size=14), bar=st.booleans())
def test_no_line_raises(words: list[str], bar: bool) -> None:
    found = facts(("".join(words), int(bar)))

    assert isinstance(found[0], LogLine)


@pytest.mark.parametrize(
    ("text", "bar"),
    [
        (" " * 60_000 + "x", 1),
        ("a" * 60_000 + " NCCL INFO x", 0),
        ("{'loss': " * 6_000, 0),
        ("{'loss': " + "-" * 50_000 + "1, 'iteration': '1/2'}", 0),
        ("{'loss': " + "[" * 50_000 + "1, 'iteration': '1/2'}", 0),
        (" iteration 1/ 2 | " + "a b " * 15_000, 0),
        (" iteration 1/ 2 | " + "| a: 1 " * 9_000, 0),
        ("sav" + "saving checkpoint at iteration  " * 2_000, 0),
        ("1%|" * 20_000, 1),
    ],
)
def test_line_made_to_be_slow_is_read_in_a_moment(text: str, bar: int) -> None:
    import time

    began = time.process_time()
    facts((text, bar))

    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "behind",
    [
        "slurmstepd: error: *** JOB 4711 ON gpu-17 CANCELLED AT 2026-11-20T22:48:19 ***",
        "[WARNING:swift] To avoid errors, you can pass `strict=False`.",
        "Setting `pad_token_id` to `eos_token_id`",
    ],
)
@pytest.mark.parametrize(
    "bar",
    [
        " 38%|###8      | 3/8 [00:00<00:01,  3.31it/s]",
        "29948it [35:34,  7.00s/it]",
        "  0%|          | 0/8 [00:00<?, ?it/s] 38%|###8      | 3/8 [00:00<00:01,  3.31it/s]",
    ],
)
def test_what_another_writes_behind_a_bar_is_a_line_of_its_own(bar: str, behind: str) -> None:
    lines = [fact for fact in line_facts.read_text(bar + behind, "out", None) if isinstance(fact, LogLine)]

    assert [(line.text, line.bar) for line in lines] == [(bar, True), (behind, False)]


def test_what_a_bar_shows_behind_itself_is_its_own() -> None:
    for text in (
        " 38%|###8      | 3/8 [00:00<00:01,  3.31it/s] loss 0.3",
        "Epoch 1:  38%|###8      | 3/8 [00:00<00:01,  3.31it/s, v_num=0]",
        "commit [4f2a]fixes it [too]late",
    ):
        assert [
            fact.text for fact in line_facts.read_text(text, "out", None) if isinstance(fact, LogLine)
        ] == [text]
