"""Jobs whose memory ran out on a machine with cgroup v2 (tests/vm/memory, captures/memory/v2), judged again
without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.agent.samplers.kernel import KmsgLines
from diag.engine.journal import JournalReader
from diag.engine.replay import replay, replay_records
from diag.model import Record
from diag.model.observations import KernelLine, KernelOomKill, KernelRefusal
from diag.sources.parsers import PARSERS
from tests.vm.memory.scenarios import MIB, SCENARIOS, Scenario

_RECORDED = {"loss-collapse"}  # the recorded ranks printed one loss for ever


@pytest.fixture
def v2(captures: Path) -> Path:
    return captures / "memory" / "v2"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_replayed_job_has_the_findings_that_it_must_have_and_no_others(v2: Path, scenario: Scenario) -> None:
    _, changes, notes = replay([v2 / f"journal-{scenario.name}.jsonl.gz"])
    found = [change.finding for change in changes if change.finding.severity.counts]
    told = [(finding.id, finding.cause, finding.ranks, finding.summary) for finding in found]

    for wanted in scenario.wanted:
        assert any(wanted.is_met_by(finding.to_json()) for finding in found), told
        causes = {finding.cause for finding in found if finding.id == wanted.id}
        assert wanted.cause is None or causes == {wanted.cause}, told
    assert {finding.id for finding in found} <= {
        *(wanted.id for wanted in scenario.wanted),
        *scenario.also,
        *_RECORDED,
    }, told
    assert notes == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_without_the_kernels_log_the_cause_is_the_same(v2: Path, scenario: Scenario) -> None:
    """As in a container, where /dev/kmsg is not. Of a whole group that was killed those are named whose exit
    could be read."""
    records = JournalReader([v2 / f"journal-{scenario.name}.jsonl.gz"])

    _, changes = replay_records(record for record in records if record.source != "kmsg")
    found = [change.finding for change in changes if change.finding.severity.counts]
    told = [(finding.id, finding.cause, finding.ranks, finding.summary) for finding in found]

    for wanted in scenario.wanted:
        (last,) = [finding for finding in found if finding.id == wanted.id][-1:] or [None]
        assert last is not None, told
        assert wanted.cause is None or last.cause == wanted.cause, told
        assert last.ranks and set(last.ranks) <= set(wanted.ranks or last.ranks), told
    assert {finding.id for finding in found} <= {
        *(wanted.id for wanted in scenario.wanted),
        *scenario.also,
        *_RECORDED,
    }, told


def test_kill_of_a_neighbour_shortly_before_changes_neither_moment_nor_phase(v2: Path) -> None:
    """Two other jobs of the machine were killed 5 s and 1 s before, the first when this one had not begun its
    save."""
    _, changes, _ = replay([v2 / "journal-pod_limit_after_others.jsonl.gz"])
    (summary,) = {change.finding.summary for change in changes if change.finding.id == "host-oom"}

    assert (
        "rank 1 (pid 141), which held 104 MiB, for memory while saving a checkpoint after iteration 96"
        in summary
    )
    assert "it grew most, by 77.9 MiB" in summary


def facts(path: Path) -> list[object]:
    """Of raw records of /dev/kmsg, a line each."""
    lines = KmsgLines()
    taken = [line for raw in path.read_bytes().splitlines() for line in lines.take(raw)]
    told = PARSERS["kmsg"](Record("kmsg", {"lines": taken}, at=1.0))
    return [fact for fact in told if not isinstance(fact, KernelLine)]


@pytest.mark.parametrize(
    ("name", "cgroup", "limit", "kills"),
    [
        ("rank_limit", "/rank_limit/rank1", 64 * MIB, 1),
        ("pod_limit", "/pod_limit", 112 * MIB, 1),
        ("container_limit", "/container_limit/main", 320 * MIB, 1),
        ("group_kill", "/group_kill/main", 112 * MIB, 2),
        ("host_runs_out", "", None, 3),
    ],
)
def test_kernel_tells_whom_it_killed_and_for_which_limit(
    v2: Path, name: str, cgroup: str, limit: int | None, kills: int
) -> None:
    told = facts(v2 / f"kmsg-{name}.txt")

    found = [fact for fact in told if isinstance(fact, KernelOomKill)]

    assert len(found) == kills
    assert {(kill.cgroup, kill.limit_bytes) for kill in found} == {(cgroup, limit)}
    last = max(found, key=lambda kill: kill.anon_bytes)
    if limit is not None:
        assert dict(last.breakdown)["anon"] == pytest.approx(limit, rel=0.1)
    assert (last.pid, last.comm) == last.tasks[0][:2]


def test_kernel_tells_refused_forks_of_a_pids_limit_and_of_strict_overcommit(v2: Path) -> None:
    (pids,), strict = facts(v2 / "kmsg-pids_limit.txt"), facts(v2 / "kmsg-fork_refused.txt")

    assert isinstance(pids, KernelRefusal)
    assert (pids.what, pids.cgroup) == ("pids", "/pids_limit/rank1")
    assert {(fact.what, fact.comm) for fact in strict if isinstance(fact, KernelRefusal)} == {
        ("overcommit", "python3")
    }


def test_record_that_breaks_off_says_so_with_how_full_the_container_was(v2: Path) -> None:
    """The kernel killed the whole container for memory, diag in it too."""
    engine, _, _ = replay([v2 / "journal-group_kill_with_diag.jsonl.gz"])

    (told,) = [line for line in engine.not_checked() if line.what == "how the run ended"]

    assert "cgroup" in told.reason and " % of its limit of 320 MiB when last read" in told.reason
    assert "memory.oom.group" in told.remedy and "shareProcessNamespace" in told.remedy


@pytest.mark.parametrize(
    "name", [scenario.name for scenario in SCENARIOS if scenario.name != "group_kill_with_diag"]
)
def test_record_of_a_run_that_ended_does_not_break_off(v2: Path, name: str) -> None:
    engine, _, _ = replay([v2 / f"journal-{name}.jsonl.gz"])

    assert "how the run ended" not in [line.what for line in engine.not_checked()]


def test_kill_of_a_whole_cgroup_is_told_as_one(v2: Path) -> None:
    def summary(name: str) -> str:
        engine, _, _ = replay([v2 / f"journal-{name}.jsonl.gz"])
        return next(finding.summary for finding in engine.active() if finding.id == "host-oom")

    assert "and all else in its cgroup (memory.oom.group) for memory" in summary("group_kill")
    assert "memory.oom.group" not in summary("container_limit")
