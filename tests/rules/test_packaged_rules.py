"""The packaged rules over whole logs of jobs that went well: none of them may name an error there."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.rules.check import lines_of
from diag.rules.load import packaged
from diag.rules.reader import LogReader

LOGS = sorted((Path(__file__).parent.parent / "captures" / "logs").glob("*.log"))
HEALTHY = [log for log in LOGS if not log.name.startswith("elastic_")]


def roots(log: Path) -> list[str]:
    reader = LogReader(packaged())
    for rank, line in lines_of(log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")):
        reader.read(0.0, rank, line)
    return [hit.rule.id for hits in reader.hits.values() for hit in hits if hit.rule.role == "root" and reader.stands(hit)]


@pytest.mark.parametrize("log", HEALTHY, ids=lambda log: log.stem)
def test_log_of_a_job_that_went_well_is_named_by_no_rule(log: Path) -> None:
    assert roots(log) == []


@pytest.mark.parametrize("log", [log for log in LOGS if log.name.startswith("elastic_")], ids=lambda log: log.stem)
def test_launchers_summary_alone_is_no_root_cause(log: Path) -> None:
    assert roots(log) == []
