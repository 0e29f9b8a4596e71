"""What a run's hub writes at its end of what it ran on, and whom critical findings named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from diag.detectors.relations import Precedence
from diag.engine.comparing.facts import facts
from diag.engine.engine import Engine
from diag.model import Confidence, Finding, Placement, Severity
from diag.model.observations import (
    DiskSpace,
    EnvironmentSeen,
    GpuSample,
    NcclLine,
    NcclVersion,
    Observation,
    RankFound,
    RunStarted,
    SoftwareSeen,
    VersionSeen,
)
from diag.state.view import JobView


class Reports:
    """A detector that reports what it is given."""

    name = "reports"
    listens: tuple[type, ...] = ()

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return self.findings

    def not_checked(self, job: JobView) -> Iterable[Any]:
        return ()


def found(id: str, *ranks: int, severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding(id, "job", severity, Confidence.HIGH, "", "", 1.0, ranks=ranks)


def gpu(index: int, *, used: int = 0, busy: float = 0.9, clock: float = 1.98e9, pid: int = 0) -> GpuSample:
    return GpuSample(
        *(
            None,
            index,
            f"GPU-{index}",
            f"0{index}:00.0",
            "H100",
            busy,
            used,
            80 << 30,
            600.0,
            700.0,
            clock,
            60.0,
        ),
        pids=(pid,) if pid else (),
    )


def engine_after(*observed: Observation, findings: tuple[Finding, ...] = ()) -> Engine:
    engine = Engine({}, [Reports(*findings)], Precedence())
    engine.job.observe(1.0, RunStarted(None, ("python", "t.py"), 1, "gpu-7", cwd="/job"))
    for rank in range(2):
        place = Placement(rank, rank, 4, "gpu-7", 100 + rank)
        engine.job.observe(2.0, RankFound(rank, place, "python t.py"))
    for fact in observed:
        engine.job.observe(3.0, fact)
    engine.advance(10.0)
    engine.finish()
    return engine


def test_facts_are_json_and_null_is_what_was_not_read() -> None:
    told = facts(engine_after())

    assert json.loads(json.dumps(told)) == told
    assert (told["hosts"], told["world_size"], told["ranks_here"], told["cwd"]) == (["gpu-7"], 4, 2, "/job")
    assert [told[key] for key in ("gpus", "packages", "environment", "transports", "steps")] == [None] * 5


def test_versions_are_those_of_process_and_log() -> None:
    line = NcclLine(0, "gpu-7", 100, 100, 0, "INFO", "NCCL version 2.28.9+cuda13.0")
    told = facts(
        engine_after(
            SoftwareSeen(0, 100, "3.12", "6.8.0", "570.1", (("torch", "2.13.0"),)),
            VersionSeen(None, "ms-swift", "4.0.0"),
            NcclVersion(0, line, "2.28.9", "13.0"),
        )
    )

    assert told["versions"] == {
        "ms-swift": "4.0.0", "nccl": "2.28.9", "cuda": "13.0", "python": "3.12", "kernel": "6.8.0", "driver": "570.1",
    }  # fmt: skip
    assert told["packages"] == {"torch": "2.13.0"}


def test_later_reading_without_packages_does_not_hide_the_first() -> None:
    told = facts(
        engine_after(SoftwareSeen(0, 1, "", "", "", (("torch", "2"),)), SoftwareSeen(0, 1, "", "", "", None))
    )

    assert told["packages"] == {"torch": "2"}


def test_environment_is_what_all_ranks_have_alike() -> None:
    told = facts(
        engine_after(
            EnvironmentSeen(0, 100, (("RANK", "0"), ("NCCL_DEBUG", "INFO"), ("ONLY", "1"))),
            EnvironmentSeen(1, 101, (("RANK", "1"), ("NCCL_DEBUG", "INFO"))),
        )
    )

    assert told["environment"] == {"NCCL_DEBUG": "INFO"}


def test_runs_own_directory_is_called_alike_in_all_runs() -> None:
    told = facts(
        engine_after(
            DiskSpace(None, "/runs/a", "run_dir", 1, 1),
            EnvironmentSeen(0, 100, (("NCCL_DEBUG_FILE", "/runs/a/nccl/%h.log"),)),
            EnvironmentSeen(1, 101, (("NCCL_DEBUG_FILE", "/runs/a/nccl/%h.log"),)),
        )
    )

    assert told["environment"] == {"NCCL_DEBUG_FILE": "RUN_DIR/nccl/%h.log"}


def test_gpus_have_their_highest_memory_and_their_clock_at_work() -> None:
    told = facts(
        engine_after(
            gpu(0, used=10 << 30, clock=1.8e9, pid=100),
            gpu(0, used=70 << 30, clock=2.0e9, pid=100),
            gpu(0, used=1 << 30, busy=0.0, clock=0.3e9, pid=100),  # it waits: its clock says nothing
            gpu(1, busy=0.0, pid=101),
        )
    )

    assert [(one["uuid"], one["memory_peak_bytes"], one["busy_clock_hertz"]) for one in told["gpus"]] == [
        ("GPU-0", 70 << 30, 1900000000),
        ("GPU-1", None, None),
    ]


@pytest.mark.parametrize(
    ("finding", "culprits"),
    [
        (
            found("hang", 1),
            [{"id": "hang", "class": "", "ranks": [1], "all_ranks_named": 1, "gpus": ["GPU-1"]}],
        ),
        (
            found("hang", 1, 3),
            [{"id": "hang", "class": "", "ranks": [1], "all_ranks_named": 2, "gpus": ["GPU-1"]}],
        ),
        (found("hang", 3), []),  # of another node
        (found("hang"), []),
        (found("slow", 1, severity=Severity.WARNING), []),
    ],
)
def test_culprits_are_the_ranks_here_that_a_critical_finding_named(
    finding: Finding, culprits: list[dict[str, Any]]
) -> None:
    engine = engine_after(gpu(0, pid=100), gpu(1, pid=101), findings=(finding,))

    assert facts(engine)["culprits"] == culprits


def test_finding_that_did_not_stand_names_no_culprit() -> None:
    engine = engine_after(gpu(1, pid=101), findings=(found("hang", 1),))
    engine._detectors[0].findings = ()  # type: ignore[attr-defined]
    engine.advance(20.0)

    assert facts(engine)["culprits"] == []
