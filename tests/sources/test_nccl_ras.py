"""NCCL RAS: real answers of NCCL 2.28.9 from files, and torn text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model.observations import (
    RasCommunicator,
    RasReading,
    SourceWorks,
    Unparsed,
)
from diag.sources.collectives import nccl_ras as source
from tests.rasserver import CAPTURES, captured
from tests.sources.ras_readings import LARGE, from_file, parsed, reading

# Scenario, its JSON, its text of the same standstill.
PAIRS = [
    ("data_hang", "ras_json.txt", "ras_verbose.txt"),
    ("skip_collective", "ras_json.txt", "ras_verbose.txt"),
    ("mismatch_op", "ras_json.txt", "ras_verbose.txt"),
    ("rank_killed", "ras_json.txt", "ras_verbose.txt"),
    ("megatron_data_hang", "hang_ras.json", "hang_ras.txt"),
    ("mega4_data_hang", "hang_ras.json", "hang_ras.txt"),
    ("megatron_healthy", "epoch0_ras.json", "epoch0_ras.txt"),
    ("megatron_healthy", "steps_ras.json", "steps_ras.txt"),
]


def only(found: RasReading) -> RasCommunicator:
    (communicator,) = found.communicators
    return communicator


# --- JSON
# ------------------------------------------------------------------------------------------------------


def test_json_tells_every_member_of_a_communicator_and_what_it_launched() -> None:
    found = from_file("data_hang/ras_json.txt")

    assert (found.nccl_version, found.timeouts, found.whole, found.detailed, found.host) == (
        "2.28.9",
        0,
        True,
        True,
        "node-0",
    )
    communicator = only(found)
    assert (communicator.hash, communicator.size, communicator.missing) == ("557acd318ce9d90b", 2, ())
    assert (communicator.status, communicator.errors) == ("RUNNING", ("MISMATCH",))
    zero, one = communicator.ranks
    assert (one.rank, one.host, one.pid, one.cuda_dev, one.nvml_dev) == (1, "192.0.2.2", 752, 1, 1)
    assert (one.init_state, one.async_error, one.finalize_called, one.destroy_flag, one.abort_flag) == (
        0,
        0,
        False,
        False,
        False,
    )
    assert dict(zero.counts) == {
        "Broadcast": 0,
        "Reduce": 0,
        "AllGather": 0,
        "ReduceScatter": 0,
        "AllReduce": 29,
    }
    assert dict(one.counts)["AllReduce"] == 25


def test_comma_that_nccl_2_28_9_leaves_out_is_put_in() -> None:
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(captured("rank_killed/ras_json.txt"))

    found = from_file("rank_killed/ras_json.txt")

    assert found.whole
    (missing,) = only(found).missing
    assert (missing.rank, missing.pid, missing.nvml_dev) == (1, 1339, 1)
    assert (missing.unresponsive, missing.considered_dead) == (True, False)
    assert only(found).errors == ("INCOMPLETE",)


def test_file_may_have_the_lines_of_the_protocol_in_front_or_not_and_either_key() -> None:
    name = "skip_collective/ras_json.txt"
    with_lines = from_file(name)
    assert reading({"json": captured(name)}) == with_lines
    assert (
        reading({"json": "\ufeffSERVER PROTOCOL 2\r\nOK\r\nOK\r\n" + captured(name).replace("\n", "\r\n")})
        == with_lines
    )
    text = "skip_collective/ras_verbose.txt"
    assert reading({"text": "ERROR: Unknown command set format json\n" + captured(text)}) == from_file(text)


def test_whole_report_of_25_communicators_is_read() -> None:
    found = from_file("mega4_data_hang/hang_ras.json")
    assert len(found.communicators) == 25
    assert sum(len(communicator.ranks) for communicator in found.communicators) == 44
    assert {communicator.hash for communicator in found.communicators if communicator.errors} == {
        "6724f710479523e4",
        "fb5434cf8228bb53",
    }


@pytest.mark.parametrize("name", ["mega4_data_hang/hang_ras.json", "rank_killed/ras_json.txt"])
def test_report_that_was_cut_off_gives_the_members_before_the_cut_and_says_that_it_is_not_whole(
    name: str,
) -> None:
    text = captured(name)
    whole = from_file(name)
    members = [rank for communicator in whole.communicators for rank in communicator.ranks]
    counts = []
    for cut in range(text.index('"communicators":'), len(text.rstrip()), 61):
        facts = parsed({"json": text[:cut]})
        if isinstance(facts[0], Unparsed):  # not one member came
            assert not counts
            continue
        found = facts[1]
        assert isinstance(found, RasReading) and not found.whole
        got = [rank for communicator in found.communicators for rank in communicator.ranks]
        assert got == members[: len(got)]
        counts.append(len(got))
    assert counts == sorted(counts) and counts[-1] == len(members) and len(set(counts)) == len(members)


def test_states_that_were_not_captured_are_judged_as_nccl_does() -> None:
    text = captured("data_hang/ras_json.txt")

    def changed(*changes: tuple[str, str]) -> RasCommunicator:
        new = text.replace('"AllReduce": 25', '"AllReduce": 29')
        for old, by in changes:
            assert old in new
            new = new.replace(old, by, 1)
        return only(reading({"json": new}))

    assert (changed().status, changed().errors) == ("RUNNING", ())
    # one initialises, one runs
    assert changed(('"init_state": 0', '"init_state": 7')).errors == ("MISMATCH",)
    assert changed(('"async_error": 0', '"async_error": 6')).errors == ("ERROR",)
    both = changed(('"init_state": 0', '"init_state": 7'), ('"init_state": 0', '"init_state": 7'))
    assert (both.status, both.errors) == ("INIT", ())
    aborted = changed(('"abort_flag": false', '"abort_flag": true'))
    assert (aborted.status, aborted.errors) == ("ABORT", ("MISMATCH",))


# --- text
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "as_json", "as_text"), PAIRS, ids=lambda value: str(value).removesuffix(".json")
)
def test_text_and_json_of_one_standstill_say_the_same(scenario: str, as_json: str, as_text: str) -> None:
    left, right = from_file(f"{scenario}/{as_json}"), from_file(f"{scenario}/{as_text}")

    assert right.whole and not right.detailed and left.nccl_version == right.nccl_version

    def table(found: RasReading) -> list[tuple[int, str, tuple[str, ...]]]:
        return sorted((item.size, item.status, item.errors) for item in found.communicators)

    assert table(left) == table(right)
    by_hash = {item.hash: item for item in left.communicators}
    wrong = [item for item in right.communicators if item.hash]
    assert {item.hash for item in wrong} == {item.hash for item in left.communicators if item.errors}
    for item in wrong:
        same = by_hash[item.hash]
        assert item.missing == same.missing
        for rank in item.ranks:
            other = next(one for one in same.ranks if one.rank == rank.rank)
            assert (rank.host, rank.pid, rank.cuda_dev) == (other.host, other.pid, other.cuda_dev)
            assert set(rank.counts) <= set(other.counts)


def test_paragraphs_of_the_report_are_kept_for_evidence() -> None:
    found = from_file("mismatch_op/ras_verbose.txt")
    assert [line.splitlines()[0] for line in found.excerpts] == [
        "#0-0 (4ceca98352f13570) MISMATCH",
        "  Communicator ranks have different AllReduce operation counts",
    ]
    assert from_file("megatron_data_hang/hang_ras.txt").excerpts == ()


def test_short_report_reads_as_the_verbose_one() -> None:
    assert (
        from_file("data_hang/ras_status.txt")
        == from_file("data_hang/ras_verbose_t.txt")
        == from_file("data_hang/ras_verbose.txt")
    )


def test_text_names_outliers_and_counts_the_rest() -> None:
    found = reading({"text": LARGE})

    assert (found.nccl_version, found.timeouts, found.dead) == ("2.27.5", 2, (("fd00::2", 119),))
    first, *others = found.communicators
    assert [(item.size, item.status, item.errors) for item in others] == [(4, "INIT", ())] * 3
    assert (first.hash, first.size, first.errors) == (
        "00000000deadbeef",
        16,
        ("INCOMPLETE", "ERROR", "MISMATCH"),
    )
    assert [(one.rank, one.pid, one.unresponsive, one.considered_dead) for one in first.missing] == [
        (12, 116, False, False),
        (14, 118, True, False),
        (15, 119, True, True),
    ]
    assert (first.missing[1].cuda_dev, first.missing[1].nvml_dev) == (6, 2)
    ranks = {rank.rank: rank for rank in first.ranks}
    assert {number: rank.async_error for number, rank in ranks.items() if rank.async_error} == {
        4: 6,
        5: 6,
        6: 1,
    }
    assert ranks[13].init_state == 7
    assert {number: dict(rank.counts) for number, rank in ranks.items() if rank.counts} == {
        2: {"AllReduce": 899},
        3: {"AllReduce": 899},
        7: {"AllReduce": 0},
    }
    assert first.unnamed == (("AllReduce", 900, 10),)
    assert [words.splitlines()[0] for words in found.excerpts][:3] == [
        "INCOMPLETE",
        "DEAD",
        "#0-0 (00000000deadbeef) INCOMPLETE",
    ]


def test_text_that_was_cut_off_is_not_whole() -> None:
    for cut in range(60, LARGE.index("Warnings"), 37):
        assert not reading({"text": LARGE[:cut]}).whole
    assert reading({"text": LARGE[: LARGE.index("#0-0")]}).dead == (("fd00::2", 119),)


# --- what is no report
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        [],
        {},
        {"text": 3},
        {"text": ""},
        {"json": "{}"},
        {"json": "[1]"},
        {"json": '{"a": 1}'},
        {"text": "hello\n" * 50},
        {"json": "{" * 100_000},
        {"json": '{"nccl_version": ' + "9" * 5000 + "}"},
        {"text": "\x00\xff" * 500},
        {"text": captured("straggler/ras_json.txt")},
        {"text": (CAPTURES / "data_hang" / "ras_hello.txt").read_text()},
    ],
    ids=lambda payload: repr(payload)[:30],
)
def test_what_is_no_report_is_said_to_be_none(payload: Any) -> None:
    (fact,) = parsed(payload)
    assert isinstance(fact, Unparsed) and len(fact.excerpt) < 400


def test_report_with_values_of_other_types_is_read_without_them() -> None:
    text = captured("data_hang/ras_json.txt")
    for old, new in [
        ('"pid": 751', '"pid": "x"'),
        ('"status": {', '"status": [{'),
        ('"ranks": [', '"ranks": {"a": ['),
    ]:
        assert parsed({"json": text.replace(old, new)})
    found = reading(
        {"json": re.sub(r'"pid": 751', '"pid": null', text).replace('"size": 2', '"size": 1e999')}
    )
    assert (only(found).ranks[0].pid, only(found).size) == (0, 0)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("utf-8", "replace")))
def test_any_text_is_a_report_or_is_none_and_nothing_else(text: str) -> None:
    for fact in parsed({"text": text}):
        assert isinstance(fact, (Unparsed, SourceWorks, RasReading))


@given(st.data())
def test_report_with_any_piece_changed_is_still_a_report_or_none(data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from(
            [captured("rank_killed/ras_json.txt"), LARGE, captured("mismatch_op/ras_verbose.txt")]
        )
    )
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 80)))
    for fact in parsed({"text": text[:start] + data.draw(st.text(max_size=20)) + text[end:]}):
        assert isinstance(fact, (Unparsed, SourceWorks, RasReading))


def test_saved_answers_are_recognised_by_their_beginning_and_nothing_else_is() -> None:
    saved = [path for path in CAPTURES.rglob("*") if path.is_file() and path.suffix in (".txt", ".json")]
    answers = {path for path in saved if source.is_answer(path.read_text()[:1000])}
    assert {path.relative_to(CAPTURES) for path in set(saved) - answers} == {
        Path("data_hang/ras_hello.txt"),
        Path("straggler/ras_json.txt"),
        Path("straggler/ras_verbose.txt"),
    }
    logs = CAPTURES.parents[1] / "logs"
    assert not [
        path for path in logs.rglob("*.log") if source.is_answer(path.read_text(errors="replace")[:1000])
    ]
    assert not source.is_answer('{"version": "2.10", "entries": []}')
