"""Every finding says whether the same command would come through."""

from __future__ import annotations

import pytest

from diag.detectors.findings import table as findings
from diag.detectors.hang.catalogue import catalogue
from diag.detectors.retry import RETRYABLE, acts, retryable, table
from diag.model import Finding
from diag.outputs.manual import ids
from tests.act.facts import hang


@pytest.mark.parametrize("name", ids())
def test_every_finding_has_it(name: str) -> None:
    row = table()[name]
    values = [row["retryable"], *row.get("classes", {}).values(), *row.get("causes", {}).values()]

    assert set(values) <= set(RETRYABLE), values


def test_the_table_has_no_other_findings_classes_and_causes() -> None:
    """A name that is misspelt would never count."""
    classes = {klass for entry in catalogue().values() for klass in entry.classes}
    causes = {*catalogue(), *(cause for row in findings().values() for cause in row.get("causes", {}))}
    for name, row in table().items():
        assert name in ids()
        assert set(row.get("classes", {})) <= classes
        assert set(row.get("causes", {})) <= causes
        assert set(row.get("acts", {})) <= classes


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (hang("lock_deadlock", cause="lock_taken_twice"), "yes"),
        (hang("collective_mismatch", cause="calls_differ"), "no"),
        (hang("gpu_side", cause="xid_79"), "elsewhere"),
        (hang("data_loading", cause="busy"), "unknown"),
        (hang("lock_deadlock", cause="polls_for_lock_file"), "no"),
        (hang("", id="a-rule-of-my-own"), "unknown"),
    ],
)
def test_cause_comes_before_class(finding: Finding, expected: str) -> None:
    assert retryable(finding) == expected


@pytest.mark.parametrize(
    "klass", ["unknown", "stopped", "checkpoint_io", "compile_wait", "rendezvous", "resource_wait"]
)
def test_waits_that_somebody_outside_may_end_are_not_on_the_list(klass: str) -> None:
    assert acts("hang", klass) == ()


def test_held_up_alone_is_never_acted_on() -> None:
    assert not any("acts" in row for name, row in table().items() if name != "hang")
