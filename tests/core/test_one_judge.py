"""Evidence of any kind is judged as the same records are from a journal, and as the same lines are while they come."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.engine.engine import Engine
from diag.engine.importers.log_import import LogImport
from diag.engine.importers.log_reader import log_records
from diag.engine.importers.policy import RUN
from diag.engine.journal import JournalReader, JournalWriter, segments
from diag.engine.replay import Evidence, replay, replay_records
from diag.model import Change, Record
from diag.outputs.report import job_status, report
from diag.sources.logs import output
from diag.text.errors import DiagError

CAPTURES = Path(__file__).parents[1] / "captures"
FOLDERS = sorted(path for path in (CAPTURES / "loose").iterdir() if path.is_dir())
LOGS = sorted(
    path
    for path in [
        *CAPTURES.glob("logs/*.log"),
        *CAPTURES.glob("loose/*/*.log"),
        *CAPTURES.glob("logs/*/*.log"),
    ]
    if 0 < path.stat().st_size < 200_000
)
SOME_LOGS = LOGS[:: max(1, len(LOGS) // 60)]


def imported(paths: list[Path], directory: Path) -> list[Record]:
    """A journal of what was read."""
    evidence, kept, journal = Evidence(paths), [], None
    for record in evidence:
        journal = journal or JournalWriter(directory, policy=evidence.policy or RUN.name)
        assert journal.write(record) is None
        kept.append(record)
    assert journal is not None
    journal.close()
    return kept


def said(judged: tuple[Engine, list[Change]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return report(judged[0]), [change.to_json() for change in judged[1]]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_folder_is_judged_as_its_journal_is(folder: Path, tmp_path: Path) -> None:
    imported([folder], tmp_path)

    assert said(replay([tmp_path])[:2]) == said(replay([folder])[:2])


@pytest.mark.parametrize("log", SOME_LOGS, ids=name_of)
def test_log_is_judged_as_its_journal_is(log: Path, tmp_path: Path) -> None:
    imported([log], tmp_path)

    assert JournalReader(segments(tmp_path)).policy == ""  # known with the first record
    assert said(replay([tmp_path])[:2]) == said(replay([log])[:2])


def test_logs_of_all_ranks_are_judged_as_their_journal_is(tmp_path: Path) -> None:
    logs = [CAPTURES / "loose" / "skip_collective" / f"rank{rank}.log" for rank in (0, 1)]
    imported(logs, tmp_path)

    document, _ = said(replay([tmp_path])[:2])

    assert document == said(replay(logs)[:2])[0]
    assert [one["id"] for one in document["findings"]] == ["hang"]


class LineByLine:
    """A log as a pipe gives it whose writer flushes each line."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._file.readline()


def findings(judged: tuple[Engine, list[Change]]) -> set[tuple[object, ...]]:
    """Open at the end. Lines of one moment have one time in a whole log: which of two ranks that died in it was the
    first, only who reads the lines as they come can tell."""
    return {
        (one.id, one.klass, one.cause, () if one.id == "rank-died" else one.ranks)
        for one in judged[0].active()
    }


def whole(log: Path) -> list[Record]:
    return list(log_records(io.BytesIO(log.read_bytes()), log.name, 1e9))


def line_by_line(log: Path) -> Iterator[Record]:
    """Who reads lines as they come has a clock: what stands before the first time is as old as that."""
    return log_records(LineByLine(log.read_bytes()), log.name, whole(log)[0].at)


@pytest.mark.parametrize("log", SOME_LOGS, ids=name_of)
def test_log_that_comes_line_by_line_is_judged_as_the_whole(log: Path) -> None:
    came, read = replay_records(LogImport(line_by_line(log))), replay_records(LogImport(whole(log)))

    assert findings(came) == findings(read)
    assert job_status(came[0]) == job_status(read[0])
    assert came[0].not_checked() == read[0].not_checked()


def watched(log: Path) -> list[Record]:
    """The same lines as `diag run` has them: the ranks are known before, their exit statuses behind, and no line has
    a number."""
    records = list(LogImport(line_by_line(log)))
    told = [one for one in records if one.source != output.SOURCE]
    ranks = [one for one in told if one.payload.get("event") == "rank"]
    for one in ranks:
        one.payload["placement"]["launcher"] = "torchrun"
    ends = [
        one
        for one in told
        if one not in ranks and one.payload.get("event") not in ("logs_ended", "snapshot", "end_unknown")
    ]
    lines = [one for one in records if one.source == output.SOURCE]
    first = lines[0].at
    for one in lines:
        del one.payload["first"]
    begin = [Record(one.source, one.payload, one.rank, one.host, at=first) for one in ranks]
    return [*begin, *lines, *ends]


@pytest.mark.parametrize("log", SOME_LOGS, ids=name_of)
def test_log_is_judged_as_the_run_that_printed_it_would_be(log: Path) -> None:
    """But for what takes the place of looking: a hang by the watchdog's lines alone, which a run proves by stacks over
    time, and a failure that a run knows by an exit."""
    live, read = findings(replay_records(watched(log))), findings(replay_records(LogImport(whole(log))))

    assert {kind for kind, _, cause, _ in read - live if cause != "launcher_failed"} <= {
        "hang",
        "unrecognised-failure",
    }
    assert live <= read


def test_journal_of_a_policy_that_this_diag_does_not_know_is_refused(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, policy="of tomorrow")
    journal.write(Record("run", {"event": "ended", "returncode": 0}, at=1.0))
    journal.close()

    with pytest.raises(DiagError, match="judged as 'of tomorrow'"):
        replay([tmp_path])
