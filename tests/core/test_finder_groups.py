"""Ranks by the word of their process group: real processes, and the files that the hook in them would write."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.group_reports import GroupReports
from diag.agent.rank_finder import RankFinder
from diag.sources.host.process_tree import is_python, read_process
from tests.core.test_finder import LAUNCHER, WAIT, Job, a_job, pids, torchrun

# A process without a rank's variables that starts another one, as a trainer starts vLLM's workers.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1] + ".child"], stdin=subprocess.PIPE)
print("did", sys.argv[1], __import__("os").getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job() -> Iterator[Job]:
    with a_job() as started:
        yield started


def starts(job: Job, name: str, **env: str) -> int:
    return job.start(name, [sys.executable, "-c", WAIT, name], env)


def starts_parent(job: Job, name: str, **env: str) -> tuple[int, int]:
    """Pids of a process and of the one below it."""
    job.order("start", name, [sys.executable, "-c", PARENT, name, WAIT], env)
    came: dict[str, int] = {}
    assert job.process.stdout is not None
    while len(came) < 2:
        _, who, pid = job.process.stdout.readline().split()
        came[who] = int(pid)
    return came[name], came[f"{name}.child"]


def finder_of(job: Job, run_dir: Path) -> RankFinder:
    return RankFinder(job.process.pid, "host", run_dir=run_dir)


def says(run_dir: Path, pid: int, rank: int, world: int, **more: Any) -> Path:
    """What the hook writes when this process has joined a process group."""
    process = read_process(pid)
    assert process is not None
    group = {
        "rank": rank,
        "world": world,
        "store": "tcp://127.0.0.1:29500",
        "ticks": process.ticks,
        "number": 1,
    }
    path = run_dir / f"hook.{pid}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"version": 1, "pid": pid, "rank": rank, "group": {**group, **more}}))
    new.replace(path)
    return path


def test_processes_that_joined_a_group_are_its_ranks_and_nobody_else_is(job: Job, tmp_path: Path) -> None:
    # given mp.spawn's children, one of them not there yet, and a helper that never joins
    one, two, _ = starts(job, "one"), starts(job, "two"), starts(job, "helper")
    finder = finder_of(job, tmp_path)
    assert finder.scan() == []
    says(tmp_path, one, 2, 3)
    says(tmp_path, two, 0, 3, thread=[two + 1, 99], env={"LOCAL_RANK": "1", "WANDB_API_KEY": "hunter2"})

    # when it looks twice
    found = finder.scan()

    # then each is the rank that it says, of a world of 3
    assert pids(found) == {2: one, 0: two}
    assert [item.placement.world_size for item in found] == [3, 3]
    by_rank = {item.placement.rank: item for item in found}
    assert (by_rank[0].placement.local_rank, by_rank[0].thread, by_rank[0].group) == (1, (two + 1, 99), 1)
    assert "hunter2" not in repr(found)
    assert (finder.scan(), finder.withdrawn) == ([], [])


def test_ranks_of_a_launcher_are_as_they_were_when_their_group_says_the_same(
    job: Job, tmp_path: Path
) -> None:
    ranks = {rank: job.rank(rank) for rank in range(2)}
    finder = finder_of(job, tmp_path)
    before = finder.scan()

    for rank, pid in ranks.items():
        says(tmp_path, pid, rank, 2)

    assert [(item.placement.launcher, item.group) for item in before] == [("torchrun", 0)] * 2
    assert (finder.scan(), finder.withdrawn) == ([], [])


def test_group_corrects_the_number_that_the_environment_gave(job: Job, tmp_path: Path) -> None:
    zero, one = job.rank(0), job.rank(1)
    finder = finder_of(job, tmp_path)
    finder.scan()

    says(tmp_path, zero, 1, 2)
    says(tmp_path, one, 0, 2)

    assert pids(finder.scan()) == {1: zero, 0: one}
    assert (finder.scan(), finder.withdrawn) == ([], [])


def test_part_of_the_launchers_world_is_no_rank_of_the_job(job: Job, tmp_path: Path) -> None:
    """Each of two ranks makes a group of one, or starts helpers with one."""
    ranks = {rank: job.rank(rank) for rank in range(2)}
    for pid in ranks.values():
        says(tmp_path, pid, 0, 1)

    assert pids(finder_of(job, tmp_path).scan()) == ranks


def test_group_below_a_rank_is_not_the_jobs(job: Job, tmp_path: Path) -> None:
    # given two ranks of a launcher, and workers of an engine that one of them has started
    zero, worker = starts_parent(job, "trainer", **torchrun(0))
    one = job.rank(1)
    says(tmp_path, worker, 1, 2, store="tcp://127.0.0.1:4000")
    finder = finder_of(job, tmp_path)

    # then the worker is no rank, before the trainers have joined their group and after
    assert pids(finder.scan()) == {0: zero, 1: one}
    says(tmp_path, zero, 0, 2)
    says(tmp_path, one, 1, 2)
    assert (finder.scan(), finder.withdrawn) == ([], [])


def test_group_below_a_rank_that_a_group_names_is_not_the_jobs(job: Job, tmp_path: Path) -> None:
    trainer, worker = starts_parent(job, "trainer")
    says(tmp_path, worker, 0, 4, store="tcp://127.0.0.1:4000")
    says(tmp_path, trainer, 0, 2)

    assert pids(finder_of(job, tmp_path).scan()) == {0: trainer}


def test_rank_that_started_the_others_of_its_group_is_one_of_them(job: Job, tmp_path: Path) -> None:
    """Lightning's rank 0 starts the rest, and none has a RANK."""
    zero, one = starts_parent(job, "zero")
    says(tmp_path, zero, 0, 2)
    says(tmp_path, one, 1, 2)

    assert pids(finder_of(job, tmp_path).scan()) == {0: zero, 1: one}


@pytest.mark.parametrize("store", ["tcp://127.0.0.1:4000", ""])
def test_group_of_the_same_size_that_meets_elsewhere_is_not_the_jobs(
    job: Job, tmp_path: Path, store: str
) -> None:
    trainer, worker = starts_parent(job, "trainer")
    says(tmp_path, trainer, 0, 2, store=store and "tcp://127.0.0.1:29500")
    says(tmp_path, worker, 1, 2, store=store)

    assert pids(finder_of(job, tmp_path).scan()) == {0: trainer}


def test_launcher_of_one_that_spawns_a_larger_group_is_no_rank(job: Job, tmp_path: Path) -> None:
    # given `torchrun --nproc_per_node 1` whose process calls mp.spawn
    parent, child = starts_parent(job, "parent", **torchrun(0, 1))
    finder = finder_of(job, tmp_path)
    assert pids(finder.scan()) == {0: parent}

    says(tmp_path, child, 3, 8)

    assert pids(finder.scan()) == {3: child}
    assert finder.withdrawn == [(0, parent)]
    assert (finder.scan(), finder.withdrawn) == ([], [])


def test_process_taken_for_rank_0_is_withdrawn_when_others_are_the_ranks(job: Job, tmp_path: Path) -> None:
    other = starts(job, "other")
    finder = finder_of(job, tmp_path)
    lone = finder.sole_process()
    assert lone is not None and lone.placement.pid == job.process.pid
    assert (finder.scan(), finder.withdrawn) == ([], [])

    says(tmp_path, other, 5, 8)

    assert pids(finder.scan()) == {5: other}
    assert finder.withdrawn == [(0, job.process.pid)]


def test_process_taken_for_rank_0_that_joins_a_group_is_not_withdrawn(job: Job, tmp_path: Path) -> None:
    finder = finder_of(job, tmp_path)
    finder.sole_process()

    says(tmp_path, job.process.pid, 2, 3)

    assert pids(finder.scan()) == {2: job.process.pid}
    assert finder.withdrawn == []


def test_of_two_groups_side_by_side_one_is_watched(job: Job, tmp_path: Path) -> None:
    # given two jobs below one command: three processes of one, one of the other
    first = {rank: starts(job, f"first{rank}") for rank in range(3)}
    for rank, pid in first.items():
        says(tmp_path, pid, rank, 3)
    says(tmp_path, starts(job, "second"), 1, 2, store="tcp://127.0.0.1:29501")

    assert pids(finder_of(job, tmp_path).scan()) == first


def test_second_group_of_another_size_is_told_with_its_number(job: Job, tmp_path: Path) -> None:
    ranks = {rank: starts(job, f"rank{rank}") for rank in range(3)}
    for rank, pid in ranks.items():
        says(tmp_path, pid, rank, 3)
    finder = finder_of(job, tmp_path)
    finder.scan()

    # when rank 0 has gone, and the others made a group of two
    job.kill("rank0")
    for rank in (1, 2):
        says(tmp_path, ranks[rank], rank - 1, 2, number=2)

    found = finder.scan()
    assert pids(found) == {0: ranks[1], 1: ranks[2]}
    assert [(item.placement.world_size, item.group) for item in found] == [(2, 2)] * 2


def test_rank_that_has_taken_its_file_away_is_that_rank_until_it_is_gone(job: Job, tmp_path: Path) -> None:
    rank = starts(job, "rank")
    file = says(tmp_path, rank, 0, 1)
    finder = finder_of(job, tmp_path)
    assert pids(finder.scan()) == {0: rank}

    file.unlink()

    assert (finder.scan(), finder.withdrawn) == ([], [])


def test_rank_that_left_the_jobs_tree_is_found_by_its_file(job: Job, tmp_path: Path) -> None:
    """Ray's workers are started by a daemon."""
    with a_job([sys.executable, "-c", LAUNCHER]) as elsewhere:
        daemon = starts(elsewhere, "daemon")
        says(tmp_path, daemon, 0, 1)

        assert pids(finder_of(job, tmp_path).scan()) == {0: daemon}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_file_of_another_user_names_no_process_outside_of_the_job(job: Job, tmp_path: Path) -> None:
    with a_job([sys.executable, "-c", LAUNCHER]) as elsewhere:
        os.chown(says(tmp_path, starts(elsewhere, "theirs"), 0, 1), 65534, 65534)

        assert finder_of(job, tmp_path).scan() == []


def _torn(path: Path) -> None:
    path.write_text(path.read_text()[:40])


def _earlier_process(path: Path) -> None:
    path.write_text(path.read_text().replace('"ticks": ', '"ticks": 1'))


def _no_group(path: Path) -> None:
    path.write_text(json.dumps({"version": 1, "pid": int(path.name.split(".")[1]), "rank": 0}))


def _rank_beyond_its_world(path: Path) -> None:
    path.write_text(path.read_text().replace('"world": 1', '"world": 0'))


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _list(path: Path) -> None:
    path.write_text("[[]]")


@pytest.mark.parametrize(
    "damage", [_torn, _earlier_process, _no_group, _rank_beyond_its_world, _link, _fifo, _list]
)
def test_file_that_says_nothing_of_a_living_process_makes_no_rank(
    job: Job, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(says(tmp_path, starts(job, "one"), 0, 1))

    assert finder_of(job, tmp_path).scan() == []


def test_file_is_read_again_only_when_it_was_replaced(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = starts(job, "one")
    says(tmp_path, pid, 0, 2)
    words = GroupReports(tmp_path)
    assert words.read()[pid].rank == 0

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *given: pytest.fail("read again"))
        patch.setattr("diag.agent.group_reports.read_process", lambda *given: read_process_as(words, pid))
        assert words.read()[pid].rank == 0
    says(tmp_path, pid, 1, 2)

    assert words.read()[pid].rank == 1


def read_process_as(words: GroupReports, pid: int) -> Any:
    from diag.sources.host.process_tree import Process

    ((_, one),) = words._known.values()
    assert one is not None
    return Process(one.ticks, 1, 1, "python3", "S")


def test_rank_that_is_started_again_is_known_by_the_number_with_which_its_group_agrees(
    job: Job, tmp_path: Path
) -> None:
    """No launcher numbers them; the new process still waits in init_process_group, and has joined nothing."""
    two = {"WORLD_SIZE": "2"}
    zero, one = starts(job, "zero", RANK="0", **two), starts(job, "one", RANK="1", **two)
    finder = finder_of(job, tmp_path)
    says(tmp_path, zero, 0, 2)
    says(tmp_path, one, 1, 2)
    assert pids(finder.scan()) == {0: zero, 1: one}

    job.kill("one")
    again = starts(job, "again", RANK="1", **two)

    found = pids([*finder.scan(), *finder.scan()])
    assert found[1] == again


def test_number_that_the_group_does_not_agree_with_makes_no_rank(job: Job, tmp_path: Path) -> None:
    """RANK is that of a node, or of something else."""
    two = {"WORLD_SIZE": "2"}
    zero, one = starts(job, "zero", RANK="1", **two), starts(job, "one", RANK="0", **two)
    finder = finder_of(job, tmp_path)
    says(tmp_path, zero, 0, 2)
    says(tmp_path, one, 1, 2)
    assert pids(finder.scan()) == {0: zero, 1: one}

    starts(job, "helper", RANK="1", **two)

    assert finder.scan() == [] and finder.scan() == []


# A rank that starts a worker when it is told to.
STARTS_LATER = """
import pathlib, subprocess, sys, time
print("did", sys.argv[1], __import__("os").getpid(), flush=True)
while not pathlib.Path(sys.argv[3]).exists():
    time.sleep(0.01)
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1] + ".child"], stdin=subprocess.PIPE)
sys.stdin.read()
"""


def test_rank_that_the_kernel_is_ending_is_not_taken_for_its_worker(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a rank that has joined its group, and just started a worker, which has inherited its variables
    now = tmp_path / "now"
    zero = job.start("rank0", [sys.executable, "-c", STARTS_LATER, "rank0", WAIT, str(now)], torchrun(0))
    says(tmp_path, zero, 0, 2)
    says(tmp_path, job.rank(1), 1, 2)
    finder = finder_of(job, tmp_path)
    assert pids(finder.scan())[0] == zero
    now.touch()
    assert job.process.stdout is not None
    assert job.process.stdout.readline().split()[1] == "rank0.child"

    # when it was killed: it has no program any more, and is still there
    monkeypatch.setattr(
        "diag.agent.rank_finder.is_python", lambda pid, proc: pid != zero and is_python(pid, proc)
    )

    # then neither is it withdrawn, nor is the worker a rank
    assert (finder.scan(), finder.withdrawn) == ([], [])
