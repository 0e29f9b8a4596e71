"""The jobs are as they were hashed and run anywhere; the score counts what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.labs.first_sight.rounds import PYTHON, Job, Truth, changed, jobs_of, truth_of
from tests.labs.first_sight.run import cannot_be_imported, relative
from tests.labs.first_sight.score import score, sheet, table

ROUNDS = sorted(path for path in Path(__file__).parent.glob("round_*") if path.is_dir())
JOBS = [pytest.param(job, id=f"{one.name}-{job.name}") for one in ROUNDS for job in jobs_of(one)]
_OF_A_MACHINE = re.compile(rb"(?<![\w.}-])/(home|root|work|Users)/|/tmp/fs/|\bvenv\b")
HELD = Truth(False, "rank 1 waits for a|b", frozenset({1}), "give it a timeout")
HONEST = Truth(True, "rank 0 evaluates", holds_up_only=True)


def test_there_is_a_round() -> None:
    assert JOBS


@pytest.mark.parametrize("folder", ROUNDS, ids=lambda folder: folder.name)
def test_round_is_as_it_was_hashed(folder: Path) -> None:
    assert changed(folder) == []


def test_what_was_changed_since_is_told(tmp_path: Path) -> None:
    (tmp_path / "SHA256").write_text(f"{'0' * 64}  a/gone.py\n{'0' * 64}  a/other.py\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "other.py").touch()
    (tmp_path / "a" / "new.py").touch()

    assert changed(tmp_path) == ["a/gone.py", "a/new.py", "a/other.py"]


@pytest.mark.parametrize("job", JOBS)
def test_job_has_a_command_seconds_and_a_truth(job: Job) -> None:
    truth = truth_of(job)
    keys = json.loads((job.folder / "truth.json").read_text()).keys()

    assert job.command
    assert 0 < job.seconds <= 240
    assert truth.what
    assert {"honest", "what"} <= keys
    assert "holds_up_only" in keys if truth.honest else ({"ranks", "remedy"} <= keys and truth.remedy)


@pytest.mark.parametrize("job", JOBS)
def test_job_names_no_place_of_the_machine_it_was_written_on(job: Job) -> None:
    named = {
        path.name: found[0]
        for path in job.folder.rglob("*")
        if path.is_file() and (found := _OF_A_MACHINE.search(path.read_bytes()))
    }
    assert not named


@pytest.mark.parametrize("job", JOBS)
def test_job_is_run_by_the_interpreter_of_the_lab_without_its_truth(job: Job, tmp_path: Path) -> None:
    job.copy_to(tmp_path / "job", "/a b/python")
    scripts = [path.read_text() for path in (tmp_path / "job").rglob("*.sh")]

    assert any("/a b/python" in text for text in [*job.words("/a b/python"), *scripts])
    assert not any(PYTHON in text for text in [*job.words("/a b/python"), *scripts])
    assert not (tmp_path / "job" / "truth.json").exists()


def test_packages_that_are_absent_are_named() -> None:
    assert cannot_be_imported(["json", "no_such_package"]) == {"no_such_package"}


def test_times_are_told_from_the_start_of_the_job() -> None:
    told = {"at": 1000007.5, "ranks": [1], "ok": True, "text": "1970-01-12", "iso": "1970-01-12T13:46:45Z"}

    assert relative(told, 1e6) == {**told, "at": 7.5, "iso": 5.0}


def _row(*changes: dict[str, Any], honest: bool = False) -> dict[str, Any]:
    return {"ended_by_itself": honest, "exit_code": 0 if honest else 130, "findings": list(changes)}


def _change(
    severity: str, *ranks: int, what: str = "opened", finding: str = "hang", at: float = 60.0
) -> dict[str, Any]:
    told = {"id": finding, "subject": "job", "severity": severity, "ranks": list(ranks)}
    return {
        "change": what,
        "at": at,
        "finding": {**told, "summary": "rank 1 waits", "advice": "look at it", "class": "data", "cause": ""},
    }


def test_fault_with_the_right_ranks_is_found() -> None:
    row = _row(_change("warning", 0, finding="slow", at=40.0), _change("critical", 1))
    got = score("a", row, HELD)

    assert (got.reported, got.ranks_right, got.went_as_told) == (True, True, True)
    assert (got.loudest, got.delay) == ("critical", 40.0)


def test_last_word_counts() -> None:
    assert score("a", _row(_change("critical", 0), _change("critical", 1, what="updated")), HELD).ranks_right
    assert not score(
        "a", _row(_change("critical", 1), _change("critical", 0, 1, what="updated")), HELD
    ).ranks_right


def test_what_stands_counts_before_what_was_taken_back() -> None:
    taken_back = [_change("critical", 0), _change("critical", 0, what="resolved")]
    got = score("a", _row(*taken_back, _change("warning", 1, finding="straggler")), HELD)

    assert got.ranks_right


def test_silence_is_a_miss_and_so_is_a_mere_note() -> None:
    for row in (_row(), _row(_change("info", 1))):
        got = score("a", row, HELD)
        assert (got.reported, got.ranks_right, got.delay) == (False, False, None)


def test_other_ranks_are_wrong() -> None:
    got = score("a", _row(_change("critical", 0)), HELD)

    assert (got.reported, got.ranks_right) == (True, False)


def test_honest_job_with_a_critical_finding_has_one_even_when_it_was_taken_back() -> None:
    changes = [_change("critical", 0), _change("critical", 0, what="resolved")]

    assert score("a", _row(*changes, honest=True), HONEST).loudest == "critical"
    assert score("a", _row(_change("warning", 0), honest=True), HONEST).loudest == "warning"
    assert score("a", _row(honest=True), HONEST).loudest == ""


def test_table_counts_what_went_as_told() -> None:
    scores = [
        score("found", _row(_change("critical", 1)), HELD),
        score("wrong", _row(_change("critical", 0)), HELD),
        score("missed", _row(), HELD),
        score("ended", _row(honest=True), HELD),
        score("loud", _row(_change("critical", 0), honest=True), HONEST),
        score("quiet", _row(honest=True), HONEST),
    ]
    text = table(scores, ["other"])

    assert "Held up: 3; reported 2, with the right ranks 1." in text
    assert "Honest: 2; with a critical finding 1, with no more than a warning 0." in text
    assert "Not counted, as they did not go as their truth says: ended." in text
    assert "Not run: other." in text


def test_sheet_has_both_texts_side_by_side_and_no_score() -> None:
    text = sheet({"a": _row(_change("critical", 0)), "b": _row()}, {"a": HELD, "b": HELD})

    assert "| cause | rank 1 waits | rank 1 waits for a\\|b |" in text
    assert "| remedy | look at it | give it a timeout |" in text
    assert "(nothing)" in text
    assert "wrong" not in text.replace("right / partly / wrong", "")
