"""Nothing that a file can contain makes the parser of NCCL's lines raise, hang, or say more than one thing a
line.

Longer, and guided by branches: python -m tests.labs.fuzz --only nccl-lines.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import LogLine, NcclFact, NcclLine, NcclPlainLines, Unparsed
from diag.sources.logs import nccl_log, output
from diag.sources.logs.output import LineAssembler
from tests.sources.test_nccl_log_lines import TABLE, entries

REAL = [line for path in TABLE for line, _ in entries(path)]
_MARKS = "0123456789[]:<>/(){} ->"


def check(text: str) -> None:
    found = nccl_log.read_line(text, None)
    assert len(found) <= 2
    assert all(isinstance(fact, NcclLine) for fact in found[:1])
    assert all(isinstance(fact, NcclFact) and isinstance(fact.line, NcclLine) for fact in found[1:])


@given(st.text(max_size=2000))
@settings(deadline=None)
def test_any_text(text: str) -> None:
    check(text)


@given(st.sampled_from(REAL), st.data())
@settings(max_examples=600, deadline=None)
def test_mutated_real_line(line: str, data: st.DataObject) -> None:
    text = line
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 40)))
        inserted = data.draw(
            st.one_of(st.just(""), st.text(max_size=20), st.sampled_from(REAL), st.text(_MARKS, max_size=30))
        )
        text = text[:begin] + inserted + text[end:]
    check(text)


@given(st.sampled_from(REAL), st.sampled_from(REAL), st.data())
@settings(deadline=None)
def test_two_lines_written_into_each_other(first: str, second: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(first)))
    check(first[:at] + second)
    check(first[at:] + second[: data.draw(st.integers(0, len(second)))])


@given(
    st.lists(st.one_of(st.sampled_from(REAL).map(str.encode), st.binary(max_size=200)), max_size=30),
    st.integers(1, 300),
)
@settings(deadline=None)
def test_bytes_in_any_pieces_give_every_line_once(lines: list[bytes], chunk: int) -> None:
    # given lines of NCCL and binary, without carriage returns, which redraw and so replace
    data = b"".join(line.replace(b"\r", b"") + b"\n" for line in lines)

    # when they come in pieces
    assembler, told, last = LineAssembler("x"), 0, 0
    for begin in range(0, len(data), chunk):
        payload = assembler.feed(data[begin : begin + chunk])
        for fact in output.parse(Record(output.SOURCE, payload)) if payload is not None else ():
            assert not isinstance(fact, Unparsed)
            if isinstance(fact, LogLine):  # a bar, and what another process wrote behind it, are one
                told += not fact.number or fact.number != last
                last = fact.number
            elif isinstance(fact, NcclPlainLines):
                told += fact.count

    behind_bars = sum(b"NCCL " in line and (b"%|" in line or b"it [" in line) for line in data.split(b"\n"))
    assert data.count(b"\n") <= told <= data.count(b"\n") + behind_bars


@pytest.mark.parametrize(
    "text",
    [
        "a" * 60_000 + ":1:2 [0] NCCL INFO Using network IB",
        "a.b-" * 15_000 + " NCCL INFO x",
        "h:1:2 [0] NCCL INFO " + " NCCL INFO " * 5000,
        "h:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[2] [send] via NET/" + "a " * 30_000 + "/0",
        "h:1:2 [0] NCCL INFO NET/IB : Using" + " [0]mlx5_0:1" * 5000,
        "h:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 " + "a " * 30_000 + "- Init START",
        "h:1:2 [0] NCCL WARN Call to ibv_reg_mr failed with error " + "a errno " * 8000,
        "h:1:2 [0] NCCL WARN NET/IB : m:1 async fatal event on QP (" + "a" * 60_000,
        "h:1:2 [0] NCCL INFO NET/Plugin : dlerror=" + "No plugin found (" * 4000,
        "h:1:2 [0] NCCL INFO Init timings: rank 1 nranks 2 total 1.0 (" + "a 1.0, " * 8000,
        "NCCL version " * 5000,
        ("h:1:2 [0] NCCL INFO Channel 0" + "0" * 200 + "\n") * 300,
    ],
)
def test_line_made_to_be_slow_is_not(text: str) -> None:
    began = time.process_time()

    check(text)
    LineAssembler("x").feed(text.encode(), final=True)

    assert time.process_time() - began < 1.0
