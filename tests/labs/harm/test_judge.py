"""The judgement can fail: a diag that does harm is judged harmful, for the harm that it does and for no
other."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from tests.labs.harm.faults import FAULTS
from tests.labs.harm.judge import Outcome, judge
from tests.labs.harm.trial import Place, Running, apart

pytestmark = pytest.mark.xdist_group("harm-judge")  # one trial for all of them
STAND_IN = str(Path(__file__).parent / "stand_in.py")


@pytest.mark.live
@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("stops-ranks", "was held up"),
        ("kills-a-rank", "ranks came to their end"),
        ("leaves-a-process", "lives on"),
    ],
)
def test_diag_that_does_harm_is_judged_harmful(defect: str, words: str, tmp_path: Path) -> None:
    outcome = apart("none", 3, tmp_path / "trial", diag=(sys.executable, STAND_IN, defect), most=3.0)

    assert any(words in one for one in outcome.wrong), outcome
    assert defect == "kills-a-rank" or len({one.split()[0] for one in outcome.wrong}) == 1, outcome


# --- what a trial leaves, changed afterwards
# ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a trial leaves that nothing came to harm in."""
    folder = tmp_path_factory.mktemp("judge") / "trial"
    outcome = apart("none", 3, folder, most=1.5)
    assert outcome.wrong == []
    return folder


def judged(folder: Path, *, add_to_code: int = 0, journal: bool = False) -> list[str]:
    told = [json.loads(path.read_text()) for path in (folder / "results").glob("rank-*")]
    code = int((folder / "results/ended").read_text())
    run = Running(folder, max(one["rank"] for one in told) + 1 if told else 1, ())
    process = SimpleNamespace(returncode=code + add_to_code)
    run.places.append(
        Place(cast("Any", process), folder / "runs", folder / "results", folder / "out/terminal")
    )
    run.own = {child.pid for child in psutil.Process().children()}
    outcome = Outcome("none", 3, "")
    judge(outcome, replace(FAULTS["none"], no_journal=not journal), run, code)
    return outcome.wrong


def lines_of(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    terminal = folder / "out/terminal"
    terminal.write_bytes(b"".join(change(terminal.read_bytes().splitlines(keepends=True))))


def last_line(lines: list[bytes]) -> int:
    return max(index for index, line in enumerate(lines) if line.startswith(b"rank"))


def without_last(lines: list[bytes]) -> list[bytes]:
    return [line for index, line in enumerate(lines) if index != last_line(lines)]


def with_last_twice(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[last_line(lines)]]


def with_word_before_last(lines: list[bytes]) -> list[bytes]:
    index = last_line(lines)
    return [*lines[:index], b"diag: a word" + lines[index], *lines[index + 1 :]]


def say_hang(folder: Path) -> None:
    (run,) = (folder / "runs").glob("2*")
    (run / "findings.jsonl").open("a").write(
        json.dumps({"finding": {"id": "hang", "severity": "critical"}}) + "\n"
    )


def cut_journal(folder: Path) -> None:
    for path in (folder / "runs").glob("*/journal-*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def hold_up(folder: Path) -> None:
    path = next((folder / "results").glob("rank-*"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "longest_gap": 3.0}))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "swallows the last line": (lambda folder: lines_of(folder, without_last), "lines, in order: True"),
    "shows a line twice": (lambda folder: lines_of(folder, with_last_twice), "lines, in order: True"),
    "writes into a line": (lambda folder: lines_of(folder, with_word_before_last), "lines, in order: True"),
    "shows lines out of order": (
        lambda folder: lines_of(folder, lambda lines: lines[::-1]),
        "lines, in order: False",
    ),
    "says a false hang": (say_hang, "false alarm: ['hang']"),
    "loses the journal's end": (cut_journal, "the journal breaks off"),
    "holds up a rank": (hold_up, "a rank was held up for 3.0 s"),
    "loses a rank": (
        lambda folder: next((folder / "results").glob("rank-*0")).unlink(),
        "ranks came to their end",
    ),
    "leaves shared memory": (lambda folder: (folder / "shm/left").touch(), "left in shm"),
    "leaves a temporary file": (lambda folder: (folder / "tmp/left").touch(), "left in tmp"),
    "prints a traceback": (
        lambda folder: lines_of(folder, lambda lines: [*lines, b"Traceback (most recent call last):\n"]),
        "a bug of diag",
    ),
}


def test_what_a_good_diag_leaves_is_judged_harmless(trial: Path) -> None:
    assert judged(trial, journal=True) == []


def test_another_exit_code_is_judged_harmful(trial: Path) -> None:
    assert [one for one in judged(trial, add_to_code=1) if "exit code" in one]


@pytest.mark.parametrize("defect", CHANGES)
def test_diag_that_leaves_it_otherwise_is_judged_harmful(defect: str, trial: Path, tmp_path: Path) -> None:
    change, words = CHANGES[defect]
    folder = tmp_path / "trial"
    shutil.copytree(
        trial,
        folder,
        symlinks=True,
        ignore=lambda _, names: [name for name in names if name.endswith(".sock")],
    )
    change(folder)

    wrong = judged(folder, journal="journal" in defect)

    assert any(words in one for one in wrong), wrong
    assert len(wrong) == 1 or defect in ("shows lines out of order", "loses a rank"), wrong
