"""The tables beside the detectors: each row is whole, and the patterns of lines match the lines that they were
written for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from diag.detectors import DETECTORS, findings, make_detectors
from diag.detectors.cluster import JOB_DETECTORS
from diag.detectors.findings import LinePattern, finding, load, row, table
from diag.model import Confidence, Severity, what_holds
from diag.text.tables import load_table

NAMES = sorted(table())
LINES: dict[str, list[dict[str, Any]]] = load("checkpoint/lines.yaml")
ROWS = [(name, number) for name, rows in LINES.items() for number in range(len(rows))]
PLACES = load("network/places.yaml")


def advice() -> list[tuple[str, str, str]]:
    """(finding, cause, advice) of all rows."""
    return [
        (name, cause, row(name, cause).get("advice", ""))
        for name in NAMES
        for cause in ("", *table()[name].get("causes", {}))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_row_has_what_every_finding_needs(name: str) -> None:
    for cause in ("", *table()[name].get("causes", {})):
        one = row(name, cause)

        assert Severity(one["severity"]) and Confidence(one["confidence"])
        assert isinstance(one.get("final", False), bool)
        assert float(one.get("holds_seconds", 0.0)) >= 0.0


@pytest.mark.parametrize("name", NAMES)
def test_row_is_of_a_detector(name: str) -> None:
    by_rendezvous = "hostname-resolution"  # of the same detector as rendezvous-failure

    assert name in {kind.name for kind in (*DETECTORS, *JOB_DETECTORS)} | {by_rendezvous}


@pytest.mark.parametrize(("name", "cause", "text"), advice())
def test_advice_is_whole_sentences_in_one_line(name: str, cause: str, text: str) -> None:
    assert "\n" not in text and "  " not in text
    assert not text or what_holds(text, over=False).endswith((".", "?", "}", ")"))


def test_finding_takes_the_fields_of_its_cause_and_what_is_given_before_both() -> None:
    assert finding("loss-collapse", "stuck", summary="", since=1.0).confidence is Confidence.MEDIUM
    assert finding("loss-collapse", "zero", summary="", since=1.0).confidence is Confidence.HIGH

    given = finding("loss-collapse", "stuck", summary="", since=1.0, severity=Severity.INFO, confidence=None)

    assert (given.severity, given.confidence) == (Severity.INFO, Confidence.MEDIUM)
    assert given.advice.startswith("Gradients come but the loss does not move")


def test_finding_without_a_row_is_an_error() -> None:
    with pytest.raises(KeyError):
        finding("no-such-finding", summary="", since=1.0)


def test_tables_are_read_once() -> None:
    assert table() is table()
    assert findings.load("network/errors.yaml") is load("network/errors.yaml")


def test_no_table_is_read_once_the_detectors_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    load_table.cache_clear()
    findings.table.cache_clear()
    make_detectors()
    monkeypatch.setattr(Path, "read_bytes", None)  # as when no more file may be opened

    assert finding("fd-limit", "exhausted", summary="", since=1.0).advice.startswith(
        "Raise the limit of open files"
    )
    assert load("network/errors.yaml") and load("network/places.yaml") and load("gpu/cuda_errors.yaml")


# -- lines about checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), ROWS)
def test_pattern_matches_the_real_lines_that_it_was_written_for(name: str, number: int) -> None:
    rule = LINES[name][number]

    assert rule["from"] and rule["lines"]
    for line in rule["lines"]:
        first = next(one for one in LINES[name] if re.search(one["pattern"], line))
        assert first["cause"] == rule["cause"], line
        assert re.search(rule["pattern"], line)
        assert any(word in line for one in LINES[name] for word in one["words"]), "no word lets it through"


@pytest.mark.parametrize("name", sorted(load("memory/lines.yaml")))
def test_pattern_of_a_limit_matches_its_real_lines_and_leaves_those_of_others(name: str) -> None:
    known, pattern = load("memory/lines.yaml")[name], LinePattern.named(name)

    assert known["from"] and known["lines"]
    assert all(pattern.matches(line) for line in known["lines"])
    assert not any(pattern.matches(f"{word} {known['lines'][0]}") for word in known.get("without", ()))


@pytest.mark.parametrize(("name", "number"), ROWS)
def test_cause_of_a_line_is_one_of_its_finding(name: str, number: int) -> None:
    cause = LINES[name][number]["cause"]
    not_reported = {("disk-full", "write_failed"), ("checkpoint-write-error", "full")}

    assert cause in table()[name]["causes"] or (name, cause) in not_reported


# -- numbers of errors, and places --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("completion_status", "ib-error"),
        ("modify_qp_errno", "ib-error"),
        ("nccl_result", "nccl-init-error"),
    ],
)
def test_every_number_of_an_error_has_a_cause_of_its_finding(part: str, name: str) -> None:
    rows = load("network/errors.yaml")[part]

    assert "other" in rows
    assert {one["cause"] for one in rows.values()} <= set(table()[name]["causes"])
    assert all(one["means"] and one["advice"] for one in rows.values())


def test_every_cuda_error_has_a_cause_of_its_finding() -> None:
    known = load("gpu/cuda_errors.yaml")

    for one in (*known["errors"].values(), known["core_dump"]):
        assert one["cause"] in table()["gpu-fault"]["causes"]
        assert one["meaning"] and one["advice"] and isinstance(one["follows"], list)


@pytest.mark.parametrize("place", sorted(PLACES))
def test_advice_of_a_fallback_has_no_place_left_open(place: str) -> None:
    for cause in table()["ib-fallback"]["causes"]:
        text = findings.with_words(row("ib-fallback", cause)["advice"], PLACES[place])
        assert not re.search(r"\{(?:image|devices|memlock|variable)\}", text)
