"""The table of precedence: each row where it acts and where it does not, and an engine that names no finding."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

from diag.detectors.precedence import PRECEDENCE
from diag.detectors.relations import (
    Becomes,
    Kind,
    OneAtATime,
    Precedence,
    ReadAfter,
    Retold,
    Row,
    StandsStill,
    WholeJob,
)
from diag.engine.engine import Engine
from diag.model import Change, Confidence, Finding, NotChecked, Severity
from diag.model.observations import Iteration, JobVerdict
from diag.state.job import JobState
from tests.facts import Story
from tests.test_docs import FINDING_IDS

ROOT = Path(__file__).parents[2]
ELSE = Kind("disk-full")  # a finding that is in no row
OF_THE_ENGINE = ("engine/engine.py", "detectors/relations.py")


class Says:
    """A detector that reports what it is given."""

    name = "says"
    listens = ()

    def __init__(self) -> None:
        self.findings: tuple[Finding, ...] = ()

    def check(self, now: float, job: JobState) -> Iterable[Finding]:
        return self.findings

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        return ()


class Job:
    """Two ranks, and an engine with the table that is told what to report."""

    def __init__(self) -> None:
        self.says = Says()
        self.story = Story([self.says])
        self.story.wait(1.0)

    def report(self, *findings: Finding) -> list[Change]:
        self.says.findings = findings
        self.story.now += 1.0
        return self.story.engine.advance(self.story.now)

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.story.engine.active()]


def finding(kind: Kind, since: float = 1.0, **changes: object) -> Finding:
    values: dict[str, object] = {
        "subject": "job",
        "severity": Severity.CRITICAL,
        "confidence": Confidence.HIGH,
        "summary": "s",
        "advice": "a",
        "klass": kind.klass,
        **changes,
    }
    return Finding(kind.id, since=since, **values)  # type: ignore[arg-type]


def rows(kind: type[Row]) -> pytest.MarkDecorator:
    found = [row for row in PRECEDENCE.rows if isinstance(row, kind)]
    return pytest.mark.parametrize("row", found, ids=[str(number) for number in range(len(found))])


# -- each row, where it acts and where it does not


@rows(ReadAfter)
def test_consequence_is_read_after_its_cause_however_early_it_was_seen(row: ReadAfter) -> None:
    job = Job()

    job.report(finding(row.consequence, 1.0), finding(row.cause or ELSE, 2.0))

    assert job.ids == [(row.cause or ELSE).id, row.consequence.id]


@rows(ReadAfter)
def test_graver_consequence_is_read_first(row: ReadAfter) -> None:
    job = Job()

    job.report(finding(row.consequence), finding(row.cause or ELSE, severity=Severity.WARNING))

    assert job.ids == [row.consequence.id, (row.cause or ELSE).id]


@rows(ReadAfter)
def test_only_the_class_that_the_row_names_is_a_consequence(row: ReadAfter) -> None:
    if not row.consequence.klass:
        return  # of this one every class is
    job = Job()

    job.report(finding(Kind(row.consequence.id, "another"), 1.0), finding(row.cause or ELSE, 2.0))

    assert job.ids == [row.consequence.id, (row.cause or ELSE).id]


@rows(OneAtATime)
def test_another_subject_takes_the_place_of_the_one_before(row: OneAtATime) -> None:
    job, kind = Job(), Kind(row.finding)
    job.report(finding(kind, subject="rank 1", final=True))

    changes = job.report(finding(kind, subject="rank 0", final=True))

    assert [one.subject for one in job.story.findings()] == ["rank 0"]
    assert [one.replaced for one in changes if one.finding.subject == "rank 1"] == [True]


@rows(OneAtATime)
def test_what_a_rule_reports_and_what_is_in_no_row_stays_beside_another(row: OneAtATime) -> None:
    job = Job()
    job.report(finding(ELSE, subject="/a", final=True))

    job.report(finding(ELSE, subject="/b", final=True))

    assert [one.subject for one in job.story.findings()] == ["/a", "/b"]

    job.report(finding(Kind(row.finding), subject="rank 1", final=True, rule="some-rule"))
    job.report(finding(Kind(row.finding), subject="rank 0", final=True, rule="some-rule"))

    assert {"rank 0", "rank 1"} < {one.subject for one in job.story.findings()}


@rows(WholeJob)
def test_it_is_withheld_while_the_job_hub_judges(row: WholeJob) -> None:
    job = Job()
    job.story.tell(JobVerdict(None, "gpu-0", 2, 2, ()))

    job.report(finding(Kind(row.finding)))

    assert job.ids == []
    assert [one.id for one in job.story.engine.withheld.values()] == [row.finding]


@rows(WholeJob)
def test_it_is_reported_without_a_job_hub_and_beside_one_where_a_rule_reports_it(row: WholeJob) -> None:
    alone, joined = Job(), Job()
    joined.story.tell(JobVerdict(None, "gpu-0", 2, 2, ()))

    alone.report(finding(Kind(row.finding)))
    joined.report(finding(Kind(row.finding), rule="some-rule"), finding(ELSE))

    assert alone.ids == [row.finding]
    assert set(joined.ids) == {row.finding, ELSE.id}


def _over_with_a_step(kind: Kind) -> tuple[int, ...]:
    """A finding on rank 1 that rank 0 waits for is gone, and a step was made."""
    job = Job()
    job.report(finding(kind, job.story.now, ranks=(1,), waiting_ranks=(0,)))
    job.story.now += 5.0
    job.story.tell(Iteration(None, 1, 10, "1/10"))
    resolved = job.report()
    return resolved[0].moved_again


@rows(StandsStill)
def test_its_ranks_that_moved_again_are_listed_when_it_is_over(row: StandsStill) -> None:
    assert _over_with_a_step(Kind(row.finding)) == (1,)


@rows(StandsStill)
def test_of_other_findings_nobody_is_said_to_move_again(row: StandsStill) -> None:
    assert _over_with_a_step(ELSE) == ()


@rows(Retold)
def test_it_is_told_in_short_beside_what_explains_it(row: Retold) -> None:
    job = Job()
    whole = finding(Kind(row.finding), cause="exit_1", summary="it ended; its last words", ranks=(1,))

    job.report(whole, finding(ELSE, ranks=(1,), final=True))

    (told,) = [one for one in job.story.findings() if one.id == row.finding]
    assert told.summary == f"it ended; see finding {ELSE.id} for the reason"


@rows(Retold)
def test_it_is_told_whole_beside_what_explains_nothing_and_by_a_rule(row: Retold) -> None:
    whole = finding(Kind(row.finding), cause="exit_1", summary="it ended; its last words", ranks=(1,))
    for other in row.unexplained_by:
        job = Job()
        job.report(whole, finding(Kind(other), ranks=(1,), final=True))
        assert whole in job.story.findings()

    job = Job()
    of_rule = finding(Kind(row.finding), cause="exit_1", summary="it ended; it says", ranks=(1,), rule="r")
    job.report(of_rule, finding(ELSE, ranks=(1,), final=True))

    assert of_rule in job.story.findings()


# -- the table


def test_the_order_in_which_findings_follow_from_each_other() -> None:
    def depth(name: str, klass: str = "") -> int:
        return PRECEDENCE.depth(finding(Kind(name, klass)))

    assert [depth("host-oom"), depth("rank-died"), depth("hang", "peer_lost")] == [0, 1, 2]
    assert [depth("hang", "gpu_side"), depth("hang", "peer_not_joined"), depth("hang", "stopped")] == [
        1,
        2,
        0,
    ]
    assert depth("checkpoint-corrupt", "left_behind") == 3
    assert depth("checkpoint-missing", "left_behind") == 4


def test_what_is_left_to_the_job_hub_and_what_is_reported_once() -> None:
    assert PRECEDENCE.whole_job == {"hang", "held-up", "rank-died", "straggler", "transport-mismatch"}
    assert PRECEDENCE.one_at_a_time == {"rank-died"}
    assert PRECEDENCE.stands_still == {"hang", "held-up"}


def _kinds(row: Row) -> list[Kind]:
    if isinstance(row, ReadAfter):
        return [row.consequence, *([row.cause] if row.cause else [])]
    if isinstance(row, Becomes):
        return [Kind(name) for name in row.findings]
    more = row.unexplained_by if isinstance(row, Retold) else ()
    return [Kind(name) for name in (row.finding, *more)]


def _literals(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("row", PRECEDENCE.rows, ids=lambda row: type(row).__name__)
def test_every_row_is_of_findings_and_classes_that_exist_and_has_a_reason(row: Row) -> None:
    detectors = [path for path in (ROOT / "diag" / "detectors").rglob("*.py") if path.name != "precedence.py"]
    written = {text for path in detectors for text in _literals(path)}

    assert row.because
    for kind in _kinds(row):
        assert kind.id in FINDING_IDS
        assert not kind.klass or kind.klass in written


def test_no_row_is_there_twice() -> None:
    assert len(PRECEDENCE.rows) == len({(type(row), *_kinds(row)) for row in PRECEDENCE.rows})


def test_table_in_which_something_follows_from_itself_is_refused() -> None:
    a, b, c = Kind("a"), Kind("b"), Kind("c")
    with pytest.raises(ValueError, match="follows from itself"):
        Precedence([ReadAfter(a, b, ""), ReadAfter(b, c, ""), ReadAfter(c, a, "")])

    assert Precedence([ReadAfter(a, b, ""), ReadAfter(b, c, ""), ReadAfter(a, c, "")]).depth(finding(a)) == 2


@pytest.mark.parametrize("name", OF_THE_ENGINE)
def test_engine_names_no_finding(name: str) -> None:
    assert _literals(ROOT / "diag" / name) & FINDING_IDS == set()


def test_engine_without_a_table_puts_findings_in_order_of_severity_and_time() -> None:
    says = Says()
    says.findings = (finding(Kind("rank-died"), 1.0), finding(ELSE, 2.0))
    engine = Engine({}, [says], Precedence())

    engine.advance(5.0)

    assert [one.id for one in engine.active()] == ["rank-died", ELSE.id]


def test_engine_imports_no_presentation() -> None:
    tree = ast.parse((ROOT / "diag" / "engine" / "engine.py").read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]

    assert [name for name in modules if name.startswith(("diag.outputs", "diag.agent", "diag.cli"))] == []
