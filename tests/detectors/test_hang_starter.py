"""What the launcher of one's own does while ranks have not appeared: the loop in which it waits before it is through with
starting them; silence of one that only waits for what it has started."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import ProgramRead, RankFound, StarterSeen
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.facts import TRAIN, Story, found, frames, stack, tree
from tests.programs import line_of

JOIN = (*TRAIN, "init_process_group torch/distributed/distributed_c10d.py:1800")
STARTER = 600
TEXT = """
def main():
    for rank in range(world):
        procs.append(start(rank))
        flag = os.path.join(flags, f"{rank}.up")
        while not os.path.exists(flag):
            time.sleep(0.2)  # flag
    for one in procs:
        while one.poll() is None:
            time.sleep(0.2)  # poll
    for one in procs:
        one.wait()  # wait
    while True:
        time.sleep(1)  # supervises


def in_turn():
    for rank in range(world):
        subprocess.run(["python", "train.py", str(rank)])  # in_turn
"""


def told(path: Path, mark: str, function: str = "main", *library: str) -> Finding:
    script = path / "launch.py"
    script.write_text(TEXT)
    line = line_of(TEXT, mark)
    lines = (f"{function} {script}:{line}", *library)
    text = program.read(Files(), str(script), {line: function}, time.time() + 1)
    story = Story(world=1)
    story.engine.job.ranks.world_size = 3
    for at in range(45):
        seen = tree(0, story.now)
        story.tell(replace(seen, main=replace(seen.main, ppid=STARTER)), stack(0, story.now, JOIN))
        sample = stack(0, story.now, lines, pid=STARTER)
        story.tell(replace(sample, threads=(replace(sample.threads[0], frames=frames(*lines)),)))
        if at == 10:
            places = tuple(program._place_of(str(script), row) for row in text["places"])
            story.tell(ProgramRead(0, STARTER, places))
        story.wait(2.0)
    return story.the("held-up")


def test_launcher_that_waits_for_a_flag_before_it_has_started_all_is_shown(tmp_path: Path) -> None:
    hang = told(tmp_path, "flag")

    assert (hang.cause, hang.ranks) == ("ranks_missing", (1, 2))
    assert f"pid {STARTER}, which has started rank 0, is in main (" in hang.summary
    assert "it sleeps again and again in the loop `while not os.path.exists(flag):`" in hang.summary
    assert "within `for rank in range(world):`" in hang.summary
    assert hang.advice.startswith("What starts the ranks waits at the line shown")


def test_launcher_that_runs_one_rank_after_another_is_shown(tmp_path: Path) -> None:
    library = f"run {'/usr/lib/python3.11'}/subprocess.py:548"
    hang = told(tmp_path, "in_turn", "in_turn", library)

    assert "its line is `subprocess.run([" in hang.summary and "within `for rank in" in hang.summary


@pytest.mark.parametrize("mark", ["poll", "wait", "supervises"])
def test_launcher_that_waits_for_what_it_has_started_is_not_shown(mark: str, tmp_path: Path) -> None:
    hang = told(tmp_path, mark)

    assert f"pid {STARTER}" not in hang.summary and "What starts the ranks" not in hang.advice


def started_by(seen: StarterSeen, world: int = 3, local_world: int = 0) -> Finding:
    """Two ranks of three wait for the third one in init_process_group."""
    story = Story(world=2)
    story.engine.job.ranks.world_size = world
    for rank in (0, 1):
        place = replace(found(rank, world).placement, local_world_size=local_world)
        story.tell(RankFound(rank, place, "python train.py"))
    for _ in range(45):
        for rank in (0, 1):
            story.tell(tree(rank, story.now), stack(rank, story.now, JOIN))
        story.tell(seen)
        story.wait(2.0)
    return story.the("held-up")


def test_script_that_has_started_fewer_ranks_than_there_should_be_is_named() -> None:
    hang = started_by(StarterSeen(0, STARTER, "bash launch.sh", (0, 1), 382, alone=True))

    assert (hang.cause, hang.ranks) == ("ranks_not_started", (2,))
    assert (
        f"pid {STARTER} (`bash launch.sh`) has started ranks 0-1 and no other rank, not even one that has ended"
        in hang.summary
    )
    assert "count the world size from what is really started" in hang.advice


@pytest.mark.parametrize(
    ("seen", "local_world"),
    [
        (
            StarterSeen(0, STARTER, "bash launch.sh", (0, 1), 1400, alone=True),
            0,
        ),  # a Python program was among those that ended
        (
            StarterSeen(0, STARTER, "bash launch.sh", (0, 1), 382, alone=False),
            0,
        ),  # or lives, and is no rank yet
        (StarterSeen(0, STARTER, "bash launch.sh", (0,), 382, alone=True), 0),  # of other ranks
        (StarterSeen(0, STARTER, "torchrun", (0, 1), 382, alone=True), 2),  # that of another node is missing
    ],
)
def test_starter_that_may_have_started_all_that_it_should_is_not_named(
    seen: StarterSeen, local_world: int
) -> None:
    hang = started_by(seen, local_world=local_world)

    assert hang.cause == "ranks_missing" and "has started" not in hang.summary
