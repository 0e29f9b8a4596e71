"""The packaged rules over whole logs of jobs that went well: none of them may name an error there."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.detectors.rules.check import lines_of
from diag.detectors.rules.load import packaged
from diag.detectors.rules.reader import LogReader
from diag.detectors.rules.ruleset import RuleSet
from diag.detectors.rules.schema import Rule

LOGS = sorted((Path(__file__).parent.parent / "captures" / "logs").glob("*.log"))
HEALTHY = [log for log in LOGS if not log.name.startswith("elastic_")]


def roots(log: Path) -> list[str]:
    reader = LogReader(packaged())
    for rank, line in lines_of(log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")):
        reader.read(0.0, rank, line)
    return [
        hit.rule.id
        for hits in reader.hits.values()
        for hit in hits
        if hit.rule.role == "root" and reader.holds(hit)
    ]


@pytest.mark.parametrize("log", HEALTHY, ids=lambda log: log.stem)
def test_log_of_a_job_that_went_well_is_named_by_no_rule(log: Path) -> None:
    assert roots(log) == []


@pytest.mark.parametrize(
    "log", [log for log in LOGS if log.name.startswith("elastic_")], ids=lambda log: log.stem
)
def test_launchers_summary_alone_is_no_root_cause(log: Path) -> None:
    assert roots(log) == []


def test_own_rules_are_compiled_when_a_line_asks_for_them_and_a_damaged_one_never_fits() -> None:
    rules = RuleSet(packaged().rules, checked=True)
    sound = "ModuleNotFoundError: No module named 'apex'"
    whole = RuleSet(packaged().rules)

    assert (
        [(one.rule.id, one.groups) for one in rules.find(rules.candidates(sound), sound)]
        == [(one.rule.id, one.groups) for one in whole.find(whole.candidates(sound), sound)]
        != []
    )

    base = packaged().by_id["missing-module"].model_dump(by_alias=True, mode="json")
    damaged = Rule.model_validate(
        base | {"id": "damaged", "match": [{"literal": "No module named", "regex": "(a"}]}
    )
    broken = RuleSet([damaged, *packaged().rules], checked=True)
    assert "missing-module" in {one.rule.id for one in broken.find(broken.candidates(sound), sound)}
    assert "damaged" not in {one.rule.id for one in broken.find(broken.candidates(sound), sound)}
    with pytest.raises(ValueError, match="damaged: match"):
        RuleSet([damaged])
