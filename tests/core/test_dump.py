"""What a dump says of every rank, and its bundle: read back by replay, whole or not there at all."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diag.capture import JournalWriter
from diag.dump import dump_document, dump_text, write_bundle
from diag.hub import Hub
from diag.model import Record
from diag.replay import replay
from diag.sources import run as run_source
from tests.facts import ALL_REDUCE, DATA, Story, stack, tree


def answer(*missing: str) -> dict[str, Any]:
    return {"missing": list(missing), "seconds": 0.2}


@pytest.fixture
def story() -> Story:
    """Four ranks are told, of a world of five: 0 and 1 wait for 2, 3 is dead, 4 is elsewhere."""
    job = Story(world=4)
    job.engine.job.world_size = 5
    for rank, lines in ((0, ALL_REDUCE), (1, ALL_REDUCE), (2, DATA)):
        job.tell(tree(rank, job.now), stack(rank, job.now, lines))
    job.exit(3, signal=9)
    return job


def document(story: Story, answers: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    hub = SimpleNamespace(engine=story.engine, run_id="20261121-000000-abc", version="0.1.0", host="node-0")
    given = {0: answer(), 1: answer(), 2: answer()} if answers is None else answers
    return dump_document(cast(Hub, hub), given, 1.234)


def test_every_rank_has_a_stack_or_a_reason_why_not(story: Story) -> None:
    made = document(story)

    with_stack = {rank for item in made["classes"] for rank in item["ranks"]}
    assert {0, 1, 2} <= with_stack
    assert set(made["missing"]) == {"3", "4"}
    assert made["missing"]["3"] == ["the process has ended"]
    assert made["missing"]["4"] == ["not on this node, or not started"]


def test_document_has_the_shape_that_others_script_against(story: Story) -> None:
    made = document(story)

    assert made["schema"] == "diag.dump/1"
    assert made["report"]["schema"] == "diag.report/1"
    assert {"run_id", "diag_version", "host", "at", "seconds", "ranks", "classes", "missing", "probes", "text"} <= set(made)
    assert [probe["rank"] for probe in made["probes"]] == [0, 1, 2]
    assert not any(probe["paused_target"] for probe in made["probes"])
    json.dumps(made)


def test_ranks_of_the_same_stack_are_one_class(story: Story) -> None:
    made = document(story)

    assert [0, 1] in [item["ranks"] for item in made["classes"]]
    assert "ranks 0-1" in made["text"]


def test_sidecar_that_did_not_answer_and_what_it_could_not_reach_are_said(story: Story) -> None:
    made = document(story, {0: answer("3 child processes not reached in time"), 1: answer()})

    assert made["missing"]["2"] == ["its sidecar did not answer in time"]
    assert made["missing"]["0"] == ["3 child processes not reached in time"]
    assert "missing: rank 2: its sidecar did not answer in time" in dump_text(made, colour=False, width=100)


def test_ranks_without_a_stack_for_the_same_reason_are_one_line(story: Story) -> None:
    made = document(story, {rank: answer("no stack: ptrace is not permitted") for rank in range(3)})

    assert "missing: ranks 0-2: no stack: ptrace is not permitted" in dump_text(made, colour=False, width=100)


def test_job_without_ranks_gives_a_dump_as_well() -> None:
    made = document(Story(world=0), {})

    assert (made["classes"], made["missing"]) == ([], {})
    assert dump_text(made, colour=False, width=60)


# --- bundle ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = JournalWriter(folder)
    for record in (run_source.started(["train.py"], 10, "n", 1), run_source.ended(0, "n")):
        journal.write(Record(record.source, record.payload, None, "n", at=1000.0))
    journal.close()
    return folder


def test_bundle_is_read_back_by_replay_and_holds_what_a_person_reads(story: Story, run_dir: Path, tmp_path: Path) -> None:
    made = document(story)

    write_bundle(made, run_dir, tmp_path / "dump.tar.gz")

    assert made["bundle"] == str(tmp_path / "dump.tar.gz")
    with tarfile.open(tmp_path / "dump.tar.gz") as tar:
        names = tar.getnames()
        assert {member.mode for member in tar.getmembers()} == {0o600}
        stacks = tar.extractfile("stacks.txt")
        assert stacks is not None and b"ranks 0-1" in stacks.read()
    assert names == ["manifest.json", "dump.json", "stacks.txt", "journal-000001.jsonl.gz"]
    assert replay([tmp_path / "dump.tar.gz"])[0].job.returncode == 0


def test_full_disk_leaves_no_half_bundle_and_is_noted(story: Story, run_dir: Path, tmp_path: Path) -> None:
    # given a disk that takes nothing
    made = document(story)
    (tmp_path / "dump.tar.part").symlink_to("/dev/full")

    # when the bundle is written to it
    write_bundle(made, run_dir, tmp_path / "dump.tar.gz")

    # then the dump is there all the same, and says why there is no bundle
    assert made["bundle_error"] == "No space left on device"
    assert "bundle" not in made
    assert list(tmp_path.glob("dump*")) == []


def test_directory_that_is_gone_is_noted(story: Story, run_dir: Path, tmp_path: Path) -> None:
    made = document(story)

    write_bundle(made, run_dir, tmp_path / "gone" / "dump.tar.gz")

    assert made["bundle_error"] == "No such file or directory"


def test_segment_that_the_journal_drops_meanwhile_costs_only_itself(
    story: Story, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = document(story)
    real = run_dir / "journal-000001.jsonl.gz"
    monkeypatch.setattr("diag.dump.segments", lambda directory: [real, run_dir / "journal-000002.jsonl.gz"])

    write_bundle(made, run_dir, tmp_path / "dump.tar.gz")

    assert "bundle_error" not in made
    assert replay([tmp_path / "dump.tar.gz"])[0].job.returncode == 0
