"""Whose lines are read, and when: of a suspected job, those of the program itself, each once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from diag.agent.samplers.context import NodeContext
from diag.agent.samplers.program import ProgramSampler, _path, _wanted
from diag.agent.samplers.sampler import Reporter
from diag.model import Placement, Record
from diag.model.observations import Frame, RankFound
from diag.settings import load
from diag.state.rank import RankState
from diag.state.view import JobView
from tests.facts import Story, frames, process, stack, tree

HERE = Path(__file__)
LINE = next(at for at, line in enumerate(HERE.read_text().splitlines(), 1) if line.startswith("LINE = "))


class Watched:
    """This very process as rank 0, at a line of this file and one of the standard library."""

    def __init__(self, tmp_path: Path, *, reads: bool = True) -> None:
        self.records: list[Record] = []
        settings = load(run_root=tmp_path).model_copy(update={"read_program": reads})
        self.story = Story(world=1)
        place = Placement(0, 0, 1, "node-0", os.getpid(), 1, 0, 1, "torchrun")
        self.story.tell(RankFound(0, place, "python train.py"))
        lines = (f"<module> {HERE}:{LINE}", f"wait {os.__file__}:1")
        self.story.tell(replace(stack(0, self.story.now, lines), pid=os.getpid()))
        engine = self.story.engine
        reporter = Reporter(self.records.append, "node-0")
        self.sampler = ProgramSampler.of(NodeContext(reporter, engine, None, settings))  # type: ignore[arg-type]

    def look(self, *, closer: bool = True) -> list[Record]:
        self.sampler.tend(closer, self.story.engine.job)
        self.sampler.sample()
        return self.records


def test_line_of_the_program_is_read_once_and_no_library(tmp_path: Path) -> None:
    watched = Watched(tmp_path)

    [record] = watched.look()
    assert (record.source, record.rank, record.payload["pid"]) == ("program", 0, os.getpid())
    assert [*record.payload["files"]] == [str(HERE)]
    [place] = record.payload["files"][str(HERE)]["places"]
    assert place["line"] == LINE and place["text"].startswith("LINE = next(")
    assert watched.look() == [record]


@pytest.mark.parametrize(("reads", "closer"), [(False, True), (True, False)])
def test_job_that_is_not_suspected_or_does_not_want_it_is_not_read(
    tmp_path: Path, reads: bool, closer: bool
) -> None:
    assert Watched(tmp_path, reads=reads).look(closer=closer) == []


def test_rank_that_ended_meanwhile_is_no_error(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    rank = watched.story.engine.job.ranks[0]
    gone = 2**22 + 1  # above the kernel's highest pid
    watched.story.tell(RankFound(0, replace(rank.placement, pid=gone), "python train.py"))
    lines = (f"<module> {HERE}:{LINE}",)
    sample = stack(0, watched.story.now, lines)
    watched.story.tell(replace(sample, pid=gone, parent_pid=None))

    assert watched.look() == []


def test_line_of_a_rank_on_another_node_is_read_from_the_files_here(tmp_path: Path) -> None:
    """All run one program; a digest has the rank's stack."""
    watched = Watched(tmp_path)
    place = Placement(1, 0, 2, "node-1", 4711, 777, 1, 1, "torchrun")
    there = RankState(place)
    there.node = "run-1"
    function = "test_line_of_a_rank_on_another_node_is_read_from_the_files_here"
    number = next(at for at, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith("# HERE"))
    there.see_stack(0.0, stack(1, 0.0, [f"{function} {HERE}:{number}"]))
    ranks = [*watched.story.engine.job.alive_ranks(), there]

    known = SimpleNamespace(calls_apart=lambda: None)
    job = cast(JobView, SimpleNamespace(alive_ranks=lambda: ranks, ranks=known))  # HERE
    assert {(one.pid, one.frame.line) for one in _wanted(job)} == {
        (os.getpid(), LINE),
        (os.getpid(), number),
    }


def test_place_that_a_recursion_comes_to_again_and_again_counts_once() -> None:
    lines = [
        "main /app/train.py:9",
        "add /app/meter.py:16",
        *["show /app/meter.py:28", "take /app/meter.py:22"] * 20,
    ]

    assert [frame.line for frame in _path(frames(*lines))] == [9, 16, 28, 22]


def test_scripts_of_the_job_are_read_once_where_a_rank_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path)
    [program] = watched.look()
    script = tmp_path / "guard.sh"
    script.write_text("kill -STOP $1")
    answers = SimpleNamespace(
        cmdline=lambda: ["bash", str(script)],
        cwd=lambda: "/",
        create_time=lambda: script.stat().st_mtime + 1,
        parents=list,
    )
    monkeypatch.setattr("diag.agent.samplers.program.psutil.Process", lambda pid: answers)
    monkeypatch.setattr(NodeContext, "processes", lambda self: SimpleNamespace(scan=lambda: (os.getpid(),)))
    story = watched.story
    story.tell(replace(tree(0, story.now, state="T"), main=process(os.getpid(), state="T")))

    watched.look()
    watched.look()
    [_, record] = watched.records
    assert program in watched.records and record.payload["command"] == f"bash {script}"
    [statement] = record.payload["files"][str(script)]["statements"]
    assert statement["text"] == "kill -STOP $1"


def test_lines_of_calls_that_differed_are_read_though_nobody_is_there_any_more(tmp_path: Path) -> None:
    """By the recorder's name of a method, and by the stack's for the same line: both are asked for."""
    watched = Watched(tmp_path)
    other = Frame("test_place_that_a_recursion_comes_to_again_and_again_counts_once", str(HERE), LINE)
    apart = SimpleNamespace(frames=(Frame("<module>", str(HERE), 1), other))
    known = SimpleNamespace(calls_apart=lambda: apart)
    job = cast(JobView, SimpleNamespace(alive_ranks=watched.story.engine.job.alive_ranks, ranks=known))

    wanted = {(one.frame.function, one.frame.line) for one in _wanted(job)}
    assert wanted == {("<module>", LINE), ("<module>", 1), (other.function, LINE)}


def test_starter_is_asked_for_where_ranks_of_its_machine_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    seen = {"pid": 7, "command": "bash launch.sh", "ranks": [0], "ended_faults": 382, "alone": True}
    monkeypatch.setattr(
        "diag.agent.samplers.program.starters.read", lambda ranks: asked.append(ranks) or seen
    )
    watched = Watched(tmp_path)
    watched.look()
    assert asked == []

    place = replace(watched.story.engine.job.ranks[0].placement, world_size=2, local_world_size=0)
    watched.story.tell(RankFound(0, place, "python train.py"))
    watched.look()
    watched.look()
    assert asked == [{0: os.getpid()}]
    assert watched.records[-1].payload["started"] == {"ranks": [0], "ended_faults": 382, "alone": True}
