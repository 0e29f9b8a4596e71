"""What is kept without a person when a critical finding is told: once, in bounds, and never at the job's cost."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diag.agent.dumps import DumpTaker
from diag.agent.evidence import EvidenceKeeper, culprit_and_victim
from diag.agent.evidence_texts import kernel_text, log_text
from diag.agent.node_hub import NodeHub
from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.launch.rundir import RunDir
from diag.model import Change, ChangeKind, Confidence, Finding, Record, Severity
from diag.outputs.report import report
from diag.outputs.view.sentence import summary_line
from diag.settings import Settings
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS
from tests.facts import ALL_REDUCE, Story, stack, tree

HANG = Finding(
    "hang", "job", Severity.CRITICAL, Confidence.HIGH, "rank 1 waits", "", 1000.0,
    "data_loading", "dataloader_worker_blocked", (1,), (0, 2, 3),
)  # fmt: skip
OTHER = dataclasses.replace(HANG, id="gpu-fault", subject="gpu 0", klass="", cause="xid_79")


class Taken(DumpTaker):
    """Writes a small file, or fails as the test wants."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.native: list[list[int]] = []
        self.fails: Exception | None = None
        self.document: dict[str, Any] = {}
        self.engine: Engine | None = None

    def keep(
        self,
        deadline: float,
        path: Path,
        native: Callable[[Engine], list[int]],
        most_bytes: int,
        beside: Callable[[], Mapping[str, str]],
    ) -> dict[str, Any]:
        if self.fails is not None:
            raise self.fails
        assert self.engine is not None
        self.native.append(native(self.engine))
        self.paths.append(path)
        path.write_bytes(b"x" * 10)
        return {"bundle": str(path), **self.document}


class World:
    """A keeper beside four ranks that stand."""

    def __init__(self, run_dir: Path, **settings: Any) -> None:
        self.story = Story([], world=4)
        for rank in range(4):
            self.story.tell(tree(rank, self.story.now), stack(rank, self.story.now, ALL_REDUCE))
        (run_dir / "dumps").mkdir(parents=True)
        self.put: list[Record] = []
        self.dumps = Taken()
        self.dumps.engine = self.story.engine
        self.hub = SimpleNamespace(
            engine=self.story.engine, lock=threading.RLock(), host="node-0", put=self.put.append,
            run_dir=RunDir(run_dir, "run-1"),
        )  # fmt: skip
        hub = cast(NodeHub, self.hub)
        self.keeper = EvidenceKeeper(
            hub,
            self.dumps,
            Settings(**{"evidence_native": True, **settings}),
            lambda: dict.fromkeys(range(4), 1),
        )

    def hear(self, finding: Finding, kind: ChangeKind = ChangeKind.OPENED) -> None:
        self.keeper.hear(Change(kind, finding, 1000.0, 1000.0))
        end = time.monotonic() + 20
        while not self.keeper.is_idle():
            assert time.monotonic() < end
            time.sleep(0.005)

    def events(self, name: str) -> list[Any]:
        return [record.payload for record in self.put if record.payload["event"] == name]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run")


def test_bundle_is_written_when_a_critical_finding_is_told_and_the_journal_says_where(world: World) -> None:
    world.hear(HANG)

    [path] = world.dumps.paths
    [kept] = world.events("evidence")
    assert path.parent == world.hub.run_dir.path / "dumps" and path.name.startswith("evidence-")
    assert (kept["findings"], kept["path"], kept["size_bytes"]) == ([["hang", "job"]], str(path), 10)
    assert world.dumps.native == [[0, 1]]


def test_nobody_is_stopped_for_it_unless_that_is_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path / "run", evidence_native=Settings().evidence_native)
    world.hear(HANG)

    assert len(world.dumps.paths) == 1 and world.dumps.native == [[]]


def test_nothing_is_kept_of_a_warning_nor_where_it_is_switched_off_or_nowhere_to_keep(
    world: World, tmp_path: Path
) -> None:
    world.hear(dataclasses.replace(HANG, severity=Severity.WARNING))
    off = World(tmp_path / "off", auto_evidence=False)
    off.hear(HANG)
    nowhere = World(tmp_path / "nowhere")
    nowhere.hub.run_dir = None
    nowhere.keeper = EvidenceKeeper(cast(NodeHub, nowhere.hub), nowhere.dumps, Settings(), dict)
    nowhere.hear(HANG)

    assert [one.dumps.paths for one in (world, off, nowhere)] == [[], [], []]
    assert [one.put for one in (world, off, nowhere)] == [[], [], []]


def test_warning_that_becomes_critical_is_kept_then(world: World) -> None:
    world.hear(dataclasses.replace(HANG, severity=Severity.WARNING))
    world.hear(HANG, ChangeKind.UPDATED)

    assert len(world.dumps.paths) == 1


def test_same_finding_is_kept_once_whatever_becomes_of_it_and_again_only_with_another_culprit(
    world: World,
) -> None:
    world.hear(HANG)
    world.hear(dataclasses.replace(HANG, klass="lock_deadlock"), ChangeKind.UPDATED)
    world.hear(HANG, ChangeKind.RESOLVED)
    world.hear(HANG)
    assert len(world.dumps.paths) == 1

    world.hear(HANG, ChangeKind.RESOLVED)
    world.hear(dataclasses.replace(HANG, ranks=(3,)))
    assert len(world.dumps.paths) == 2
    assert len({path.name for path in world.dumps.paths}) == 2


def test_last_bundle_is_for_a_job_that_stands_and_then_there_is_none(world: World) -> None:
    for number in range(4):
        world.hear(dataclasses.replace(OTHER, subject=f"gpu {number}"))
    assert len(world.dumps.paths) == 2

    for rank in range(3):
        world.hear(dataclasses.replace(HANG, subject=f"rank {rank}"))
    assert len(world.dumps.paths) == 3
    assert world.events("failed") == []


def test_rank_that_works_is_not_stopped_for_native_frames(world: World) -> None:
    world.hear(OTHER)

    assert world.dumps.native == [[]]


def test_culprit_and_one_victim_are_stopped_for_native_frames_of_those_here_that_run() -> None:
    story = Story([], world=4)
    for rank in range(4):
        story.tell(tree(rank, story.now, state="T" if rank == 0 else "S"))
    story.exit(2, signal=9)
    everywhere = dict.fromkeys(range(4), 1)

    def chosen(finding: Finding, local: Mapping[int, int] = everywhere) -> list[int]:
        return culprit_and_victim(story.engine, [finding], local)

    assert chosen(HANG) == [1, 3]
    assert chosen(HANG, {0: 1, 1: 1}) == [1]
    assert chosen(HANG, {}) == []
    assert chosen(dataclasses.replace(HANG, ranks=(2,))) == [3]
    assert chosen(dataclasses.replace(HANG, ranks=(), waiting_ranks=(0, 1, 2, 3))) == [1, 3]


def test_bundle_that_cannot_be_written_is_not_checked_and_nothing_else(world: World) -> None:
    world.dumps.fails = TimeoutError("another dump is still running")
    world.hear(HANG)

    [failed] = world.events("failed")
    assert failed["source"] == "evidence" and "another dump is still running" in failed["reason"]
    assert world.events("evidence") == []


def test_disk_without_room_is_left_to_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.agent.evidence.shutil.disk_usage", lambda path: SimpleNamespace(free=70 << 20))
    world.hear(HANG)

    [failed] = world.events("failed")
    assert world.dumps.paths == [] and failed["reason"].startswith("only 70 MiB free on the disk of ")


def test_native_frames_that_were_refused_are_not_checked_and_the_bundle_is_kept(world: World) -> None:
    world.dumps.document = {
        "native": [
            {"rank": 1, "reason": "Permission Denied: Try running again\nwith sudo"},
            {"rank": 0, "reason": ""},
        ]
    }
    world.hear(HANG)

    [failed] = world.events("failed")
    assert (failed["source"], failed["reason"]) == ("native_frames", "Permission Denied: Try running again")
    assert [record.rank for record in world.put if record.payload["event"] == "failed"] == [1]
    assert len(world.events("evidence")) == 1


def test_job_that_has_ended_or_is_interrupted_is_not_read(world: World, tmp_path: Path) -> None:
    for rank in range(4):
        world.story.exit(rank, signal=9)
    world.hear(HANG)
    closed = World(tmp_path / "closed")
    closed.keeper.close()
    closed.hear(HANG)

    assert (world.dumps.paths, world.put, closed.dumps.paths) == ([], [], [])


def test_no_thread_for_it_is_not_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    world.hear(HANG)

    assert [one["reason"] for one in world.events("failed")] == ["can't start new thread"]


# --- where it is shown


def fed(*records: Record) -> Engine:
    engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
    for at, record in enumerate(records, 1000):
        engine.feed(dataclasses.replace(record, at=float(at)))
    return engine


def test_event_of_the_journal_is_read_back_with_the_finding_that_it_is_of() -> None:
    engine = fed(
        run_source.started(["train.py"], 10, "n"),
        run_source.evidence_kept([("hang", "job")], "/runs/1/dumps/a.tar.gz", 7, 2.5, "n"),
        run_source.evidence_kept(
            [("hang", "job"), ("rank-died", "rank 3")], "/runs/1/dumps/b.tar.gz", 7, 2.5, "n"
        ),
    )
    run = engine.job.run

    def path_of(key: tuple[str, str], since: float = 0.0) -> str:
        kept = run.evidence_of(key, since)
        return kept.path.rpartition("/")[2] if kept else ""

    assert [path_of(("hang", "job"), at) for at in (0.0, 1001.5, 2000.0)] == [
        "a.tar.gz",
        "b.tar.gz",
        "b.tar.gz",
    ]
    assert path_of(("rank-died", "rank 3")) == "b.tar.gz"
    assert path_of(("rank-died", "rank 2")) == ""


def test_finding_and_the_last_line_of_a_run_say_where_it_is() -> None:
    story = Story(world=2)
    story.exit(1, signal=9)
    story.wait(3)
    died = story.the("rank-died")
    assert all("bundle" not in one for one in report(story.engine)["findings"])

    story.engine.feed(Record("none", {}, at=story.now))
    story.engine.job.observe(
        story.now,
        next(iter(PARSERS["run"](run_source.evidence_kept([died.key], "/r/dumps/e.tar.gz", 1, 1.0, "n")))),
    )
    document = report(story.engine)

    assert [one["bundle"] for one in document["findings"] if one["id"] == "rank-died"] == [
        "/r/dumps/e.tar.gz"
    ]
    assert "; evidence kept when it was told: /r/dumps/e.tar.gz; " in summary_line(document, run_dir="/r")


# --- its texts


def test_log_is_its_last_thousand_lines_without_secrets(tmp_path: Path) -> None:
    lines = [f"step {number}" for number in range(3000)]
    (tmp_path / "stdout.log").write_text("\n".join([*lines, "api_key=abcd1234efgh", "last"]) + "\n")

    text = log_text(tmp_path)["log.txt"]

    assert text.startswith("==> stdout.log: the last 1000 lines\nstep 2002\n")
    assert text.endswith("api_key=***\nlast\n")
    assert log_text(tmp_path / "none") == {}


def test_kernel_log_is_its_end_or_the_reason_why_there_is_none(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    keeper = os.open(log, os.O_RDWR)
    os.write(keeper, b"3,561,57407793,-;Out of memory: Killed process 216\n")
    try:
        assert kernel_text(log) == {"kernel.txt": "[   57.407793] Out of memory: Killed process 216\n"}
    finally:
        os.close(keeper)
    assert kernel_text(tmp_path / "none")["kernel.txt"].startswith("not checked: ")
