"""What a dump says of every rank, and its bundle: read back by replay, whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diag.agent.dump import (
    Timer,
    add_native,
    dump_document,
    finish_document,
    manifest_facts,
    native_ranks,
    write_bundle,
)
from diag.agent.dumps import DumpTaker
from diag.agent.hub import Hub
from diag.engine.journal import JournalWriter, segments
from diag.engine.replay import replay
from diag.model import Record
from diag.outputs.terminal.text import dump_text
from diag.sources.host import run as run_source
from tests.facts import ALL_REDUCE, DATA, Story, stack, tree


def answer(*missing: str) -> dict[str, Any]:
    probe = {
        "probe": "stack",
        "seconds": 0.2,
        "paused_target": False,
        "ok": not missing,
        "reason": "; ".join(missing),
    }
    return {"missing": list(missing), "seconds": 0.2, "probes": [probe]}


@pytest.fixture
def story() -> Story:
    """Four ranks are told, of a world of five: 0 and 1 wait for 2, 3 is dead, 4 is elsewhere."""
    job = Story(world=4)
    job.engine.job.ranks.world_size = 5
    for rank, lines in ((0, ALL_REDUCE), (1, ALL_REDUCE), (2, DATA)):
        job.tell(tree(rank, job.now), stack(rank, job.now, lines))
    job.exit(3, signal=9)
    return job


def document(story: Story, answers: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    given = {0: answer(), 1: answer(), 2: answer()} if answers is None else answers
    made = dump_document(hub_of(story), given)
    finish_document(made, Timer())
    return made


def hub_of(story: Story) -> Hub:
    known = {"run_id": "20261121-000000-abc", "version": "0.1.0", "host": "node-0"}
    return cast(Hub, SimpleNamespace(engine=story.engine, environment={0: {"NCCL_DEBUG": "WARN"}}, **known))


def bundle(story: Story, made: dict[str, Any], run_dir: Path, path: Path) -> None:
    write_bundle(made, manifest_facts(hub_of(story)), run_dir, path)


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
    assert {
        "run_id",
        "diag_version",
        "host",
        "at",
        "seconds",
        "ranks",
        "classes",
        "missing",
        "probes",
        "text",
    } <= set(made)
    assert {"found", "next_command", "next_reason", "versions"} <= set(made)
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


def test_part_that_failed_is_told_with_its_cost_and_reason(story: Story) -> None:
    made = document(story, {0: answer("no stack: ptrace is not permitted"), 1: answer(), 2: answer()})

    [failed] = [probe for probe in made["probes"] if not probe["ok"]]
    assert (failed["rank"], failed["probe"], failed["seconds"]) == (0, "stack", 0.2)
    assert failed["reason"] == "no stack: ptrace is not permitted"


# --- native frames
# ---------------------------------------------------------------------------------------------


def test_native_frames_are_asked_of_one_rank_of_each_class(story: Story) -> None:
    assert native_ranks(story.engine) == [0, 2]


def test_stopped_rank_is_not_stopped_once_more_for_native_frames(story: Story) -> None:
    story.tell(tree(0, story.now, state="T"))

    assert native_ranks(story.engine) == [1, 2]


def test_native_frames_of_many_classes_are_asked_of_the_odd_ones_and_one_of_the_crowd() -> None:
    job = Story(world=32)
    for rank in range(32):
        lines = (
            ALL_REDUCE if rank >= 20 else [f"<module> train_{rank}.py:1", f"step_{rank} train_{rank}.py:7"]
        )
        job.tell(tree(rank, job.now), stack(rank, job.now, lines))

    chosen = native_ranks(job.engine)

    assert len(chosen) == 8 and 20 in chosen


def test_pause_for_native_frames_is_said_with_its_cost(story: Story) -> None:
    made = document(story)
    frames = [
        {"name": "epoll_wait", "filename": "libc.so.6", "line": 0},
        {"name": "train", "filename": "train.py", "line": 7},
    ]
    threads = [{"thread_name": "MainThread", "os_thread_id": 100, "frames": frames}]

    add_native(made, [0, 2], {0: {"seconds": 0.7, "native": {"pid": 100, "stdout": threads}}})
    text = dump_text(made, colour=False, width=100)

    assert "epoll_wait (libc.so.6:0)" in text and "ranks 0, 2 paused for native frames, at most 0.7 s" in text
    assert "native frames of rank 2 (pid None): none: its sidecar did not answer in time" in text
    assert [(row["rank"], row["ok"]) for row in made["probes"] if row["paused_target"]] == [
        (0, True),
        (2, False),
    ]


# --- what to type next
# -----------------------------------------------------------------------------------------


def test_stopped_rank_is_let_go_on_first(story: Story) -> None:
    story.tell(tree(2, story.now, state="T"))

    made = document(story)

    assert made["next_command"] == f"kill -CONT {story.engine.job.ranks[2].placement.pid}"
    assert f"next: {made['next_command']}   (rank 2 is stopped (state T))" in dump_text(
        made, colour=False, width=100
    )


def test_finding_without_a_command_of_its_own_is_explained(story: Story) -> None:
    story.wait(30)

    assert document(story)["next_command"] == "diag explain rank-died"


def test_job_without_findings_has_nothing_to_type_next() -> None:
    assert document(Story(world=2), {})["next_command"] == ""


# --- bundle
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = JournalWriter(folder)
    for record in (run_source.started(["train.py"], 10, "n", 1), run_source.ended(0, "n")):
        journal.write(Record(record.source, record.payload, None, "n", at=1000.0))
    journal.close()
    return folder


def test_bundle_is_read_back_by_replay_and_holds_what_a_person_reads(
    story: Story, run_dir: Path, tmp_path: Path
) -> None:
    made = document(story)

    bundle(story, made, run_dir, tmp_path / "dump.tar.gz")

    assert made["bundle"] == str(tmp_path / "dump.tar.gz")
    with tarfile.open(tmp_path / "dump.tar.gz") as tar:
        names = tar.getnames()
        assert {member.mode for member in tar.getmembers()} == {0o600}
        stacks = tar.extractfile("stacks.txt")
        assert stacks is not None and b"ranks 0-1" in stacks.read()
    assert names == ["manifest.json", "dump.json", "stacks.txt", "journal-000001.jsonl.gz"]
    assert replay([tmp_path / "dump.tar.gz"])[0].job.returncode == 0


def test_bundle_has_a_text_of_each_rank_and_the_terminal_one_line_about_it(
    story: Story, run_dir: Path, tmp_path: Path
) -> None:
    row = {
        "pid": 812,
        "command": "python train.py",
        "not_checked": ["memory map: not finished in time"],
        "open_files": {
            "count": 300,
            "listed": [{"fd": 3, "to": "/data/a", "mode": "read", "at": 7}],
            "more": {"pipe": 299},
        },
    }
    made = document(story)
    made["processes"] = [{"rank": 0, **row}, {"rank": 0, **row, "pid": 813}]

    bundle(story, made, run_dir, tmp_path / "dump.tar.gz")

    with tarfile.open(tmp_path / "dump.tar.gz") as tar:
        file = tar.extractfile("proc/rank0.txt")
        assert file is not None
        text = file.read().decode()
    assert text.startswith("pid 812: python train.py\nnot checked: memory map: not finished in time\n")
    assert "      3 -> /data/a   (read, at 7)\n  and 299 more: 299 pipe\n" in text
    assert "pid 813: " in text
    shown = " ".join(dump_text(made, colour=False, width=100).split())
    assert (
        "proc/rank*.txt: open files, sockets, threads with system calls, limits and memory map of 2 processes"
        in shown
    )
    assert "/data/a" not in shown
    assert replay([tmp_path / "dump.tar.gz"])[0].job.returncode == 0


def test_manifest_tells_what_is_in_the_bundle_and_where_it_comes_from(
    story: Story, run_dir: Path, tmp_path: Path
) -> None:
    bundle(story, document(story), run_dir, tmp_path / "dump.tar.gz")

    with tarfile.open(tmp_path / "dump.tar.gz") as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    manifest = json.loads(held.pop("manifest.json"))
    assert {row["name"]: (row["bytes"], row["sha256"]) for row in manifest["files"]} == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in held.items()
    }
    assert (manifest["schema"], manifest["world_size"], manifest["host"]) == ("diag.bundle/1", 5, "node-0")
    assert {"kernel", "python_version", "diag_version", "argv", "versions", "at", "run_id"} <= set(manifest)
    assert manifest["processes"][0]["environment"] == {"NCCL_DEBUG": "WARN"}
    assert [row["alive"] for row in manifest["processes"]] == [True, True, True, False]
    assert set(manifest["missing"]) == {"3", "4"}


def test_full_disk_leaves_no_half_bundle_and_is_noted(story: Story, run_dir: Path, tmp_path: Path) -> None:
    # given a disk that takes nothing
    made = document(story)
    (tmp_path / "dump.tar.part").symlink_to("/dev/full")

    # when the bundle is written to it
    bundle(story, made, run_dir, tmp_path / "dump.tar.gz")

    # then the dump is there all the same, and says why there is no bundle
    assert made["bundle_error"] == "No space left on device"
    assert "bundle" not in made
    assert list(tmp_path.glob("dump*")) == []


def test_directory_that_is_gone_is_noted(story: Story, run_dir: Path, tmp_path: Path) -> None:
    made = document(story)

    bundle(story, made, run_dir, tmp_path / "gone" / "dump.tar.gz")

    assert made["bundle_error"] == "No such file or directory"


def test_segment_that_the_journal_drops_meanwhile_costs_only_itself(
    story: Story, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = document(story)
    real = run_dir / "journal-000001.jsonl.gz"
    monkeypatch.setattr(
        "diag.agent.dump.segments", lambda directory: [real, run_dir / "journal-000002.jsonl.gz"]
    )

    bundle(story, made, run_dir, tmp_path / "dump.tar.gz")

    assert "bundle_error" not in made
    assert replay([tmp_path / "dump.tar.gz"])[0].job.returncode == 0


def test_dump_in_a_full_folder_takes_the_place_of_the_oldest(
    story: Story, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_dir / "dumps"
    folder.mkdir()
    monkeypatch.setattr("diag.launch.rundir._KEEP_BUNDLES", 2)
    for number, name in enumerate(("dump-1.tar.gz", "dump-2.tar.gz")):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (number, number))
    hub = hub_of(story)
    hub.cluster, hub.lock = cast(Any, SimpleNamespace(member=None)), threading.RLock()
    taker = DumpTaker(
        hub, hub.cluster, cast(Any, None), lambda: None, cast(Any, SimpleNamespace(flush=lambda: True))
    )
    monkeypatch.setattr(taker, "_name", lambda: ("dump-3", folder / "dump-3.tar.gz"))
    monkeypatch.setattr(taker, "_read", lambda *asked: document(story))

    assert taker.take(8.0)["bundle"] == str(folder / "dump-3.tar.gz")
    assert sorted(path.name for path in folder.iterdir()) == ["dump-2.tar.gz", "dump-3.tar.gz"]


def test_bundle_of_a_bounded_size_has_the_newest_and_the_first_of_the_journal_and_says_what_it_lacks(
    story: Story, tmp_path: Path
) -> None:
    # given a journal of six segments
    folder = tmp_path / "run"
    folder.mkdir()
    journal = JournalWriter(folder, max_bytes=64 << 20, segment_bytes=1 << 16)
    journal.write(Record(run_source.SOURCE, run_source.started(["first.py"], 10, "n").payload, at=999.0))
    noise = random.Random(1)
    while len(segments(folder)) < 6:
        journal.write(Record("output", {"text": noise.randbytes(20_000).hex()}, 0, "n", at=1000.0))
    journal.write(Record(run_source.SOURCE, run_source.ended(0, "n").payload, at=1001.0))
    journal.close()
    made, most = document(story), 200_000 + len(json.dumps(document(story), indent=1))

    # when there is room for three
    path = tmp_path / "dump.tar.gz"
    write_bundle(made, manifest_facts(hub_of(story)), folder, path, most_bytes=most, beside={"log.txt": "x"})

    # then it is replayed from its beginning to its end
    assert path.stat().st_size < most + 20_000
    with tarfile.open(path) as tar:
        names = tar.getnames()
        file = tar.extractfile("manifest.json")
        assert file is not None
        left_out = json.loads(file.read())["left_out"]
    kept = [name for name in names if name.startswith("journal-")]
    assert kept[0] == "journal-000001.jsonl.gz" and kept[-1] == segments(folder)[-1].name
    assert {*kept, *left_out} == {one.name for one in segments(folder)} and len(left_out) >= 2
    assert "log.txt" in names
    job = replay([path])[0].job
    assert (job.run.argv, job.returncode) == (("first.py",), 0)


@pytest.mark.parametrize("state", ["grows", "grows unflushed", "its writer was killed", "was closed"])
def test_every_journal_of_a_bundle_is_a_whole_gzip_file(story: Story, tmp_path: Path, state: str) -> None:
    # given
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    journal = JournalWriter(run_dir, segment_bytes=1 << 16, max_bytes=1 << 22)
    noise = random.Random(3)
    for number in range(400):
        text = "".join(noise.choices("abcdefghijklmnop", k=600))
        journal.write(
            Record(
                "output", {"stream": "stdout", "lines": [[text, 0]]}, at=float(number), rank=0, host="node-0"
            )
        )
    if state == "was closed":
        journal.close()
    elif state != "grows unflushed":
        journal.flush()
    if state == "its writer was killed":
        with open(segments(run_dir)[-1], "ab") as torn:
            torn.write(b"\x5d\x91\xc1\x4a")

    # when
    bundle(story, document(story), run_dir, tmp_path / "bundle.tar.gz")
    subprocess.run(["tar", "xzf", tmp_path / "bundle.tar.gz", "-C", tmp_path], check=True)

    # then
    journals = sorted(tmp_path.glob("journal-*.jsonl.gz"))
    assert len(journals) == len(segments(run_dir)) > 1
    for path in journals:
        done = subprocess.run(["gzip", "-t", path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path
    shown = subprocess.run(["zcat", *journals], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert lines[0]["schema"] == "diag.journal/1"
    if state != "grows unflushed":
        assert len(lines) == 400 + len(journals)  # a header each
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    told = {file["name"]: file["sha256"] for file in manifest["files"]}
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == told[path.name] for path in journals)
