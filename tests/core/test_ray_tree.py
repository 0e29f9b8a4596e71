"""Processes of a job on Ray, also of a Ray that was started before the job, by a folder like /proc."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from diag.agent.rank_finder import RankFinder
from diag.agent.ray_tree import RayTree, driver_on_this_machine
from diag.sources import ray
from diag.text.errors import DiagError
from tests.sources.test_ray import OTHER, WORKER, Machine, opens

DRIVER_LOG = f"python-core-driver-01000000{'f' * 40}_60.log"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Its files are opened with our own rights: the folder has none of a process."""
    monkeypatch.setattr(ray, "session_of", partial(ray.session_of, opens=opens))
    monkeypatch.setattr(ray, "sessions", partial(ray.sessions, opens=opens))
    return Machine(tmp_path)


def test_workers_of_a_ray_that_was_started_before_are_of_the_drivers_job(machine: Machine) -> None:
    machine.raylet(50)
    machine.process(60, "python", ["python", "ppo.py"], log=DRIVER_LOG)
    machine.process(70, "ray::Trainer", ["ray::Trainer"], 50, log=f"python-core-worker-{WORKER}_70.log")

    tree = RayTree(60, machine.proc)

    assert tree.scan() == (70,)
    assert (tree.beside, tree.driver) == (frozenset((70,)), 60)


def test_workers_below_the_job_are_not_named_twice(machine: Machine) -> None:
    machine.process(60, "python", ["python", "ppo.py"], log=DRIVER_LOG)
    machine.raylet(50, parent=60)
    machine.process(70, "ray::Trainer", ["ray::Trainer"], 50, log=f"python-core-worker-{WORKER}_70.log")

    tree = RayTree(60, machine.proc)

    assert sorted(tree.scan()) == [50, 70]
    assert tree.beside == frozenset()


def test_process_that_is_watched_for_want_of_ranks_is_known_to_be_a_driver(machine: Machine) -> None:
    machine.raylet(50)
    machine.process(60, "python", ["python", "ppo.py"], log=DRIVER_LOG)
    finder = RankFinder(60, "host", machine.proc)
    finder.scan()

    assert finder.drives_ray(60)
    assert not finder.drives_ray(61)


def test_job_without_ray_is_as_it_was(machine: Machine) -> None:
    machine.process(60, "python", ["python", "train.py"])

    tree = RayTree(60, machine.proc)

    assert (tree.scan(), tree.driver) == ((), None)


def test_the_only_driver_of_the_machine_is_taken(machine: Machine) -> None:
    with pytest.raises(DiagError, match="Ray does not run on this machine"):
        driver_on_this_machine(machine.proc)

    machine.raylet(50)
    with pytest.raises(DiagError, match=r"Ray runs here \(raylet, pid 50\), and no driver"):
        driver_on_this_machine(machine.proc)

    machine.process(60, "python", ["python", "ppo.py"], log=DRIVER_LOG)
    assert driver_on_this_machine(machine.proc) == 60

    machine.process(61, "python", ["python", "b.py"], log=f"python-core-driver-02000000{'f' * 40}_61.log")
    with pytest.raises(
        DiagError, match=r"2 drivers run on Ray here, and none was chosen: pid 60 \(python ppo.py\); pid 61"
    ):
        driver_on_this_machine(machine.proc)


def test_worker_without_a_job_yet_may_be_ours_and_another_jobs_is_not(machine: Machine) -> None:
    machine.raylet(50)
    machine.process(60, "python", ["python", "ppo.py"], log=DRIVER_LOG)
    machine.process(70, "ray::IDLE", ["ray::IDLE"], 50, log=f"python-core-worker-{WORKER}_70.log")
    machine.process(
        71, "ray::JobSupervis", ["ray::JobSupervisor"], 50, log=f"python-core-worker-{OTHER}_71.log"
    )
    (machine.session / "logs" / f"worker-{OTHER}-ffffffff-71.out").write_text(":job_id:02000000\n")

    assert RayTree(60, machine.proc).scan() == (70,)
