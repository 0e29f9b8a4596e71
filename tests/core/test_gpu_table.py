"""The table of runs on GPUs (docs/evidence/gpus.md), held to the journals that it names: replayed, each gives what
its row says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import ChangeKind
from diag.outputs.report import job_status

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "evidence" / "gpus.md"
_CAPTURES = _ROOT / "tests" / "captures"

HANGS = ("hang", "held-up")


@dataclass(frozen=True)
class Row:
    gpus: int
    said: str
    ranks: tuple[int, ...]
    seconds: str
    journal: str


def _cells(title: str) -> list[list[str]]:
    section = _PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _rows() -> list[Row]:
    return [
        Row(
            int(re.findall(r", (\d)", row[0])[0]),
            row[2],
            tuple(map(int, re.findall(r"\d+", row[3]))),
            row[4],
            row[6],
        )
        for row in _cells("Runs")
    ]


ROWS = _rows()
SHARED = _cells("Ranks that share a GPU")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.journal)
def test_a_row_says_what_its_journal_gives(row: Row) -> None:
    engine, changes = replay_records(JournalReader(segments(_CAPTURES / row.journal)))
    opened = [change for change in changes if change.kind is ChangeKind.OPENED]

    assert (len(engine.job.ranks), row.gpus <= len(engine.job.machine.gpus)) == (row.gpus, True)
    if row.said == "nothing found":
        assert not changes and job_status(engine) == "finished"
        return
    name, klass = re.findall(r"`([\w-]+)` (\w+)", row.said)[0]
    first = next(change for change in opened if change.finding.id == name)
    last = next(finding for finding in engine.all_findings() if finding.id == name)
    assert (last.klass or last.cause, last.ranks) == (klass, row.ranks)
    if first.finding.severity.value != "info":
        assert round(first.at - first.finding.since) in (int(row.seconds), int(row.seconds) - 1)
    assert not any(change.finding.id in HANGS for change in opened) or name in HANGS


@pytest.mark.parametrize("row", SHARED, ids=lambda row: row[5])
def test_a_row_of_ranks_on_one_gpu_says_what_its_journal_gives(row: list[str]) -> None:
    _, _, said, ranks, seconds, journal = row
    struck = json.loads((_CAPTURES / "gpu-loops" / "struck.json").read_text())[Path(journal).name]
    _, changes = replay_records(JournalReader(segments(_CAPTURES / journal)))
    opened = [change for change in changes if change.kind is ChangeKind.OPENED]

    if said.startswith("not") and not ranks:
        assert [change.finding.summary for change in opened] == []
        return
    name, cause = re.findall(r"`([\w-]+)` (\w+)", said)[0]
    ((found, after),) = [(change.finding, change.at - struck) for change in opened]
    assert (found.id, found.cause) == (name, cause)
    assert found.ranks == tuple(map(int, re.findall(r"\d+", ranks)))
    assert abs(after - int(seconds)) <= 1


def test_every_journal_of_loops_on_one_gpu_is_in_the_table() -> None:
    loops = {path.parent.name for path in (_CAPTURES / "gpu-loops").glob("*/journal-*")}
    assert loops == {Path(row[5]).name for row in SHARED}


def test_every_journal_of_the_drills_is_in_the_table() -> None:
    drills = {path.parent.name for path in (_CAPTURES / "gpu-drills").glob("*/journal-*")}
    assert drills and drills <= {Path(row.journal).name for row in ROWS}


def test_a_hang_stays_told_while_only_idle_helpers_stir() -> None:
    """Of stuck-kernel: bytes moved in /proc 79 s after the fault, nothing else."""
    engine, changes = replay_records(JournalReader(segments(_CAPTURES / "gpu-drills" / "stuck-kernel")))

    hang = next(finding for finding in engine.active() if finding.id in HANGS)
    assert not [change for change in changes if change.kind is ChangeKind.RESOLVED]
    assert engine.now - hang.since > 120
