"""A rank that gets no core: named by who comes last to collectives, with who has its cores; and when nothing is
said."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diag.detectors.training.core_shares import CoreShares
from diag.detectors.training.straggler import StragglerDetector
from diag.engine.replay import replay
from diag.model import Finding
from diag.model.observations import FlightRecorder, Iteration, ProcessTree
from diag.sources.host import core_neighbours, proc
from diag.sources.payload import numbers_in
from tests.core.test_waitgraph import call, recorder
from tests.facts import ALL_REDUCE, TRAIN, Story, stack, tree

BACKWARD = (*TRAIN, "backward torch/_tensor.py:630", "_engine_run_backward torch/autograd/graph.py:865")
FORWARD = (*TRAIN, "forward_step /app/train.py:90", "forward /app/model.py:31")
BUSY = ((4242, "sh -c while :; do :; done"), (4243, "sh -c while :; do :; done"))


def thread(rank: int, at: float, *, ready: float | None, preempted: int = 0, given: int = 0, cpu: float = 0.1,
           cores: str = "0-31", beside: tuple[tuple[int, str], ...] = ()) -> ProcessTree:  # fmt: skip
    """`ready`, `preempted` and `given` (away) are by second of `at`."""
    return dataclasses.replace(
        tree(rank, at, state="R"),
        main_thread_cpu_seconds=cpu * at,
        run_delay_seconds=None if ready is None else ready * at,
        preemptions=int(preempted * at),
        switches=int(given * at),
        cores=cores,
        beside=beside,
    )


def came(rank: int, late: float, now: float, *, step: float = 0.1) -> FlightRecorder:
    """The last 60 calls, a tenth of a second apart, each `late` after it was due."""
    entries = [
        dataclasses.replace(call("0", seq), time_created=now - 10.0 + step * seq + late)
        for seq in range(1, 61)
    ]
    return dataclasses.replace(recorder(rank, entries), emitted=now)


def train(
    *, ready: tuple[float, float], late: float, stacks: tuple[tuple[str, ...], ...] = (FORWARD, FORWARD)
) -> Story:
    """Two ranks for two minutes; by default their stacks show nothing."""
    story = Story([StragglerDetector()])
    for step in range(1, 61):
        story.wait(2.0)
        for rank in (0, 1):
            share = thread(
                rank, story.now, ready=ready[rank], preempted=45, cores="5", beside=BUSY * (rank == 1)
            )
            story.tell(share, stack(rank, story.now, stacks[rank]))
        if step == 30:
            story.tell(came(0, 0.0, story.now), came(1, late, story.now))
        story.tell(Iteration(1, step, 100, "", (("loss", 1.0),)))
    return story


def said(story: Story) -> list[Finding]:
    return [finding for finding in story.findings() if finding.id == "straggler"]


def test_rank_that_comes_last_and_gets_no_core_is_named_with_who_has_its_core() -> None:
    (found,) = said(train(ready=(0.0, 0.8), late=0.06))

    assert (found.ranks, found.waiting_ranks, found.cause) == ((1,), (0,), "cpu_contention")
    assert "it came last to 60 of 60 collectives, 60 ms after the first" in found.summary
    assert "was ready to run without one 80 % of the time" in found.summary
    assert "it may use core 5, where pid 4242 (`sh -c while :; do :; done`), pid 4243" in found.summary


@pytest.mark.parametrize(
    ("ready", "late"),
    [
        ((0.0, 0.0), 0.06),  # last, and nothing shows that it matters: hosts run ahead of their GPUs
        ((0.0, 0.8), 0.001),  # a millisecond, as between healthy ranks
        ((0.8, 0.8), 0.06),  # a crowded machine: all ranks alike
    ],
)
def test_less_than_that_names_nobody(ready: tuple[float, float], late: float) -> None:
    assert not said(train(ready=ready, late=late))


def test_order_of_arrival_decides_between_ranks_that_samples_make_look_alike() -> None:
    """Too few samples to be sure by themselves bear out what the order shows."""
    story = Story([StragglerDetector()])
    for step in range(1, 8):
        story.wait(5.0)
        for rank, where in enumerate((ALL_REDUCE, FORWARD)):
            story.tell(tree(rank, story.now), stack(rank, story.now, where))
        if step == 4:
            story.tell(came(0, 0.0, story.now), came(1, 0.06, story.now))
        story.tell(Iteration(1, step, 100, "", (("loss", 1.0),)))

    (found,) = said(story)
    assert (found.ranks, found.cause, found.confidence.value) == ((1,), "own_code", "medium")
    assert (
        "it came last to 60 of 60 collectives" in found.summary and "found waiting in 100 %" in found.summary
    )


def test_thread_that_waits_by_itself_is_not_starved_however_little_cpu_it_has() -> None:
    shares = CoreShares()
    for at in range(0, 40, 2):
        shares.observe(float(at), thread(0, float(at), ready=None, preempted=12, given=150, cpu=0.05))
        shares.observe(float(at), thread(1, float(at), ready=None, preempted=45, given=3, cpu=0.15))

    (found,) = shares.starved((0, 1))
    assert found.rank == 1
    assert "had 15 % of a core" in str(found) and "preempted 45 times a second" in str(found)


def test_recorded_rank_with_six_busy_loops_on_its_core_is_named_within_a_minute() -> None:
    """2 x H200, struck 49 s after the start: BACKWARD looked like waiting, and nothing was said in 200 s."""
    capture = Path(__file__).parents[1] / "captures" / "gpu-drills" / "starved-rank"
    _, changes, _ = replay([capture])

    opened = [change for change in changes if change.kind.value == "opened"]
    (change,) = [change for change in opened if change.finding.id == "straggler"]
    assert change.at - 1795385327.1 < 60.0
    assert (change.finding.ranks, change.finding.cause) == ((1,), "cpu_contention")


# -- read from /proc


def test_processes_that_run_on_the_ranks_core_are_found_and_its_own_are_not() -> None:
    core = max(os.sched_getaffinity(0))
    loop = [
        sys.executable,
        "-c",
        f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass",
    ]
    with (
        subprocess.Popen(loop, stdout=subprocess.PIPE) as busy,
        subprocess.Popen(loop, stdout=subprocess.PIPE) as own,
    ):
        try:
            for one in (busy, own):
                assert one.stdout is not None and one.stdout.readline()
            found = core_neighbours.running(Path("/proc"), str(core), (os.getpid(), own.pid))
        finally:
            busy.kill()
            own.kill()

    pids = dict(core_neighbours.parse(found))
    assert own.pid not in pids and os.getpid() not in pids
    if len(pids) < 8:  # others may have used more CPU
        assert "while True" in pids[busy.pid]


def test_they_are_looked_for_only_while_the_rank_gets_no_core_and_seldom() -> None:
    starvation = core_neighbours.Starvation()

    def look(seconds: float, delay: float) -> bool:
        return starvation.look(f"1000 {int(delay * 1e9)} 7".encode(), seconds)

    assert not look(0.0, 0.0)  # nothing to compare with
    assert not look(5.0, 0.5)
    assert look(10.0, 4.0)
    assert not look(15.0, 8.0)  # a few seconds ago
    assert look(45.0, 30.0)
    assert not starvation.look(b"", 50.0)


def test_a_real_process_shows_its_cores_and_how_long_it_was_ready_without_one() -> None:
    reader = proc.ProcessReader(os.getpid())
    payload = reader.sample()
    reader.close()
    (found,) = proc.parse(proc.Record(proc.SOURCE, payload, rank=0, at=1.0))

    assert isinstance(found, ProcessTree)
    assert {*numbers_in(found.cores)} == os.sched_getaffinity(0)
    assert found.run_delay_seconds is not None and found.preemptions is not None
