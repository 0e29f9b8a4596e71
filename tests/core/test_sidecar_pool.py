"""The hub's side of its sidecars: started, listened to, started again, asked for a dump."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diag.agent.samplers.sampler import Reporter
from diag.agent.sidecar_pool import SidecarPool
from diag.model import Record
from diag.model.observations import HostMemory
from diag.settings import load
from diag.sources.parsers import PARSERS
from tests.core.sidecars import (
    is_gone,
    place,
    ticks,
    wait_for,
)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[SidecarPool, queue.SimpleQueue[Record]]]:
    records: queue.SimpleQueue[Record] = queue.SimpleQueue()
    made = SidecarPool(load(proc_seconds=0.2), tmp_path, 0, Reporter(records.put))
    yield made, records
    made.close()


def record_of(records: queue.SimpleQueue[Record], source: str) -> Record:
    while True:
        record = records.get(timeout=15)
        if record.source == source:
            return record


def test_run_directory_that_is_gone_does_not_blind_the_hub(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]], tmp_path: Path
) -> None:
    tmp_path.rmdir()

    pool[0].watch(place(rank))

    assert record_of(pool[1], "proc").rank == 0


def test_rank_that_another_one_started_is_counted_once(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    # given a rank with a child, whose sidecar counts that as such
    pool[0].watch(place(rank))
    [child] = children_of(until_process(pool[1], 0, lambda record: "stat" in record.payload))

    # when the child is found to be another rank
    pool[0].watch(replace(place(rank), rank=1, pid=child, start_ticks=ticks(child)))

    # then each has its own sidecar, and none the other one as a child
    until_process(pool[1], 0, lambda record: "stat" in record.payload and not children_of(record))
    until_process(pool[1], 1, lambda record: "stat" in record.payload)


def until_process(
    records: queue.SimpleQueue[Record], rank: int, condition: Callable[[Record], bool]
) -> Record:
    while True:
        record = record_of(records, "proc")
        if record.rank == rank and condition(record):
            return record


def children_of(record: Record) -> list[int]:
    return [int(child["stat"].split()[0]) for child in record.payload["children"]]


def test_sidecar_that_the_kernel_kills_first_leaves_a_reading_of_the_host(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    pool[0].watch(place(rank))
    record_of(pool[1], "cgroup")

    os.kill(pool[0].processes()[0], signal.SIGKILL)

    record = next(
        record for record in iter(lambda: record_of(pool[1], "cgroup"), None) if record.rank is None
    )
    (host,) = PARSERS["cgroup"](record)
    assert isinstance(host, HostMemory)
    assert host.total_bytes > host.available_bytes > 0


def test_module_of_the_users_project_is_not_the_sidecars(
    rank: subprocess.Popen[bytes],
    pool: tuple[SidecarPool, queue.SimpleQueue[Record]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a project with files called as modules that the sidecar imports
    project = tmp_path / "project"
    project.mkdir()
    for name in ("json", "socket", "signal", "diag"):
        (project / f"{name}.py").write_text("raise SystemExit('not yours')")
    monkeypatch.chdir(project)

    pool[0].watch(place(rank))

    assert record_of(pool[1], "proc").rank == 0


def test_process_that_cannot_be_started_is_said_with_the_reason(
    rank: subprocess.Popen[bytes],
    pool: tuple[SidecarPool, queue.SimpleQueue[Record]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    pool[0].watch(place(rank))

    payload = pool[1].get(timeout=5).payload
    assert payload["reason"] == "cannot be started: Resource temporarily unavailable"


def test_sidecar_that_dies_is_said_and_started_again_while_its_rank_lives(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    sidecars, records = pool
    sidecars.watch(place(rank))
    record_of(records, "proc")
    first = sidecars.processes()[0]

    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not sidecars.processes(), "the pool noticed")
    sidecars.tend(lambda rank: True)

    assert sidecars.processes()[0] != first
    assert record_of(records, "run").payload["source"] == "sidecar"
    assert record_of(records, "proc").rank == 0


def test_dump_of_a_sidecar_that_dies_meanwhile_is_explained_and_not_waited_for(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    sidecars, records = pool
    sidecars.watch(place(rank))
    record_of(records, "proc")
    os.kill(sidecars.processes()[0], signal.SIGSTOP)  # it takes no order

    wait = sidecars.dump("d", 5.0)
    os.kill(sidecars.processes()[0], signal.SIGKILL)

    assert wait.done.wait(5)
    assert wait.answers[0]["missing"] == ["the sidecar ended"]


def test_new_process_of_a_rank_gets_a_sidecar_and_the_old_one_ends(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    sidecars, records = pool
    with subprocess.Popen(["sleep", "1000"]) as earlier:
        sidecars.watch(place(earlier))
        old = sidecars.processes()[0]

        sidecars.watch(place(rank))

        assert sidecars.processes()[0] != old
        wait_for(lambda: is_gone(old), "the old one ended")
        record_of(records, "proc")
        earlier.kill()


def test_process_that_becomes_another_rank_has_one_sidecar_under_its_new_number(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    pool[0].watch(place(rank))
    first = pool[0].processes()[0]

    pool[0].watch(replace(place(rank), rank=2))

    assert set(pool[0].processes()) == {2}
    wait_for(lambda: is_gone(first), "the first sidecar ends")


def test_process_that_is_found_again_under_its_number_keeps_its_sidecar(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    pool[0].watch(place(rank))
    before = pool[0].processes()

    pool[0].watch(replace(place(rank), world_size=3))

    assert pool[0].processes() == before


def test_rank_that_is_withdrawn_has_no_sidecar(
    rank: subprocess.Popen[bytes], pool: tuple[SidecarPool, queue.SimpleQueue[Record]]
) -> None:
    pool[0].watch(place(rank))

    pool[0].forget(0)

    assert pool[0].processes() == {}


def test_dump_of_no_ranks_is_done_at_once(pool: tuple[SidecarPool, queue.SimpleQueue[Record]]) -> None:
    wait = pool[0].dump("d", 5.0)

    assert wait.done.is_set() and wait.answers == {}
