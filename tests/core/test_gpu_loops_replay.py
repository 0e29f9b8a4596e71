"""Plain loops recorded live while their ranks shared one H100: replay names who was struck, and nobody else."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from diag.engine.engine import Engine
from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import Change, ChangeKind, Finding
from diag.outputs.report import job_status
from diag.state.stack_activity import Activity

CAPTURES = Path(__file__).parents[1] / "captures" / "gpu-loops"
STRUCK: dict[str, float] = json.loads((CAPTURES / "struck.json").read_text())
LOUD = ("critical", "warning")


@cache
def replayed(name: str) -> tuple[Engine, list[Change]]:
    return replay_records(JournalReader(segments(CAPTURES / name)))


def said(name: str) -> list[tuple[Finding, float]]:
    """What was opened, and how many seconds after the strike."""
    return [
        (change.finding, change.at - STRUCK[name])
        for change in replayed(name)[1]
        if change.kind is ChangeKind.OPENED and change.finding.severity.value in LOUD
    ]


def test_every_capture_is_of_two_ranks_on_one_gpu_and_knows_when_it_was_struck() -> None:
    names = {path.parent.name for path in CAPTURES.glob("*/journal-*")}

    assert names == {*STRUCK}
    for name in names:
        job = replayed(name)[0].job
        assert (sorted(job.ranks), len(job.machine.gpus)) == ([0, 1], 1), name


@pytest.mark.parametrize(
    ("name", "verdict", "words", "seconds"),
    [
        ("late-item", ("held-up", "peer_not_joined", "sleeps"), "_wait_for_leader", 20),
        ("late-thread", ("held-up", "peer_not_joined", "sleeps"), "_wait_for_leader", 20),
        (
            "stream-thread",
            ("held-up", "gpu_side", "waits_for_gpu"),
            "its thread offload-flush, inside Stream.synchronize (torch/cuda/streams.py:108), for its GPU",
            25,
        ),
        ("long-kernel-sync", ("held-up", "peer_not_joined", "busy_in_c"), "% CPU in C code", 25),
        ("leave", ("hang", "peer_lost", "rank_left_early"), "gone (exit code 0)", 30),
    ],
)
def test_rank_that_was_struck_is_named_and_the_other_waits_for_it(
    name: str, verdict: tuple[str, str, str], words: str, seconds: float
) -> None:
    ((found, after),) = said(name)

    assert (found.id, found.klass, found.cause) == verdict
    assert (found.ranks, found.waiting_ranks) == ((1,), (0,))
    assert words in found.summary and "rank 0 waits in" in found.summary
    assert 15 <= after < seconds
    assert [finding.id for finding in replayed(name)[0].active()] == [verdict[0]]


def test_one_collective_more_is_a_mismatch_with_both_calls_named() -> None:
    ((found, after),) = said("log-loss-alone")

    assert (found.id, found.klass, found.cause) == ("hang", "collective_mismatch", "calls_differ")
    assert (
        "rank 0 calls all_reduce [1048576], rank 1 calls all_reduce [1] and is in loss_of (tests/labs/bench/gpu_loop.py:98) "
        "(default_pg 598)" in found.summary
    )
    assert after < 35


def test_kernel_that_blocks_ranks_of_one_gpu_is_a_wait_of_all_and_blames_nobody() -> None:
    """Both have called the same, and the one GPU's figures are those of both."""
    ((found, after),) = said("long-kernel")

    assert (found.id, found.cause, found.severity.value) == ("held-up", "all_ranks_wait", "warning")
    assert (found.ranks, found.waiting_ranks) == ((), (0, 1))
    assert 60 <= after + 1 < 70


@pytest.mark.parametrize("name", ["healthy-item", "healthy-thread", "neighbour"])
def test_ranks_that_spin_in_a_healthy_job_are_not_reported(name: str) -> None:
    engine, changes = replayed(name)

    assert changes == []
    assert job_status(engine) == "running"
    assert (engine.job.progress.steps.counted or 0) > 100
    # who looks finds them in a wait for their GPU: by no frame in `.item()`, by `synchronize` in a thread
    assert [rank.activity for rank in engine.job.ranks.values()] == [Activity.GPU_SYNC] * 2


def faults(*, pid: int = 2476, host_pids: bool = True, words: bool = True) -> dict[str, Finding]:
    """Of neighbour-fault. `pid`: whose process the driver's line names; `words`: what rank 1 printed as it died."""
    records = []
    for one in JournalReader(segments(CAPTURES / "neighbour-fault")):
        if one.source == "kmsg":
            lines = [line.replace("pid=2476", f"pid={pid}") for line in one.payload["lines"]]
            records.append(replace(one, payload={"lines": lines, "host_pids": host_pids}))
        elif words or one.source != "output" or one.at < STRUCK["neighbour-fault"]:
            records.append(one)
    return {finding.id: finding for finding in replay_records(records)[0].all_findings()}


@pytest.mark.parametrize("host_pids", [True, False])
def test_fault_of_another_program_on_the_same_gpu_is_not_this_jobs(host_pids: bool) -> None:
    """Rank 1 says why it died, and rank 0 was ended by torchrun: neither had a fault, also where the pid of the line
    cannot be told."""
    found = faults(host_pids=host_pids)

    assert [*found] == ["rank-died"]
    died = found["rank-died"]
    assert (died.cause, died.ranks) == ("exit_1", (1,))
    assert 'it printed: "StopIteration"' in died.summary and "Xid" not in died.summary


def test_fault_of_a_ranks_own_process_is_that_ranks_and_not_of_the_other_on_the_gpu() -> None:
    found = faults(pid=2157, words=False)

    assert found["gpu-fault"].ranks == (1,) and "Xid 31" in found["gpu-fault"].summary


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("opposite-groups", {"comm_init"}),
        ("other-size", {"collective_mismatch"}),
        ("starved", {"cpu_contention"}),
    ],
)
def test_of_what_is_not_yet_named_nothing_wrong_is_said(name: str, allowed: set[str]) -> None:
    """Nobody waits for a rank that is elsewhere, and the job that goes on does not hang."""
    found = [finding for finding, _ in said(name)]

    assert {finding.klass or finding.cause for finding in found} <= allowed
    if name == "starved":
        assert {finding.ranks for finding in found} <= {(1,)}
