"""The watch over checkpoints, on real folders: what it tells, how often, and what it does where a look does
not come back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.agent.samplers.checkpoints import CheckpointSampler
from diag.agent.samplers.context import WatchedJob
from diag.agent.samplers.sampler import Reporter
from diag.knowledge.checkpoint_args import named_paths
from diag.model import Record
from diag.model.observations import CheckpointsSeen, DiskSpace, SourceFailed, SourceWorks
from diag.sources.parsers import PARSERS
from tests.sources.test_checkpoint import safetensors, torch_dist


class Told:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def facts(self) -> list[object]:
        return [fact for record in self.records for fact in PARSERS[record.source](record)]

    def seen(self) -> list[CheckpointsSeen]:
        return [fact for fact in self.facts() if isinstance(fact, CheckpointsSeen)]


def watch(view: WatchedJob, told: Told) -> CheckpointSampler:
    return CheckpointSampler(Reporter(told.records.append, "node-0"), lambda: view)


def here(*argv: str, said: tuple[str, ...] = ()) -> WatchedJob:
    return WatchedJob(("torchrun", "train.py", *argv), os.getpid(), os.getpid(), os.getuid(), False, said)


def look(one: CheckpointSampler, patience: float = 30.0) -> None:
    one._look(patience)


def test_folder_of_ms_swifts_run_is_found_below_its_output_dir_and_told_once_while_nothing_changes(
    tmp_path: Path,
) -> None:
    run = tmp_path / "out/v0-20261121-194515"
    torch_dist(run / "checkpoint-4/iter_0000004")
    told = Told()
    one = watch(here("--output_dir", str(tmp_path / "out")), told)

    for _ in range(3):
        look(one)
    first = len(told.seen())
    torch_dist(run / "checkpoint-8/iter_0000008")
    look(one)

    assert first == 1
    assert [len(fact.folders) for fact in told.seen()] == [1, 2]
    assert {fact.root for fact in told.seen()} == {str(run)}
    spaces = {fact.purpose: fact.path for fact in told.facts() if isinstance(fact, DiskSpace)}
    assert spaces["save"] == str(tmp_path / "out") and "tmp" in spaces


def test_relative_path_is_that_of_the_ranks_own_working_directory(tmp_path: Path) -> None:
    torch_dist(tmp_path / "save/iter_0000004")
    rank = subprocess.Popen([sys.executable, "-c", "input()"], cwd=tmp_path, stdin=subprocess.PIPE)
    told = Told()
    try:
        look(watch(WatchedJob(("pretrain_gpt.py", "--save", "save"), rank.pid, rank.pid), told))
    finally:
        rank.communicate(b"\n")

    assert [fact.root for fact in told.seen()] == [str(tmp_path / "save")]


def test_path_that_only_the_log_names_is_looked_at(tmp_path: Path) -> None:
    safetensors(tmp_path / "checkpoint-4/model.safetensors")
    told = Told()

    look(watch(here(said=(str(tmp_path / "checkpoint-4"),)), told))

    assert [(fact.root, fact.flag) for fact in told.seen()] == [(str(tmp_path), "")]


def test_what_the_job_begins_from_is_told_once_with_its_flag(tmp_path: Path) -> None:
    safetensors(tmp_path / "model/model.safetensors")
    told = Told()
    one = watch(here("--model", str(tmp_path / "model"), "--load", str(tmp_path / "none")), told)

    look(one)
    look(one)

    assert [(fact.flag, fact.role, fact.exists) for fact in told.seen()] == [
        ("--model", "load", True),
        ("--load", "load", False),
    ]


def test_last_look_tells_again_what_lies_there(tmp_path: Path) -> None:
    torch_dist(tmp_path / "iter_0000004")
    told = Told()
    one = watch(here("--save", str(tmp_path)), told)
    look(one)

    one.finish()
    one.finish()

    assert len(told.seen()) == 2


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    go_on = threading.Event()
    yield go_on
    go_on.set()


def test_look_that_does_not_come_back_is_left_alone_and_told_and_no_second_one_is_begun(
    stuck: threading.Event, tmp_path: Path
) -> None:
    looks: list[int] = []

    def view() -> WatchedJob:
        looks.append(1)
        stuck.wait(60)  # as a read of a network file system does whose server is gone
        return here("--save", str(tmp_path))

    told = Told()
    one = CheckpointSampler(Reporter(told.records.append, "node-0"), view)
    look(one, 0.1)
    look(one, 0.1)
    while_stuck = [fact for fact in told.facts() if isinstance(fact, SourceFailed)]
    stuck.set()
    assert one._looking is not None
    one._looking.join(30)
    look(one)

    assert len(looks) == 2  # the one that was stuck, and the one after it
    assert [fact.source for fact in while_stuck] == ["the file system of the checkpoints"]
    assert any(isinstance(fact, SourceWorks) for fact in told.facts())


def test_look_that_is_under_way_when_the_job_ends_is_awaited_and_followed_by_one_that_sees_what_is_left(
    stuck: threading.Event, tmp_path: Path
) -> None:
    torch_dist(tmp_path / "iter_0000004")
    began = threading.Event()

    def view() -> WatchedJob:
        began.set()
        stuck.wait(60)  # a large folder, or a slow server
        return here("--save", str(tmp_path))

    told = Told()
    one = CheckpointSampler(Reporter(told.records.append, "node-0"), view)
    look(one, 0.01)
    told.records.clear()
    assert began.wait(30)
    threading.Timer(0.2, stuck.set).start()

    one.finish()

    assert len(told.seen()) == 2
    assert not [fact for fact in told.facts() if isinstance(fact, SourceFailed)]


def test_folder_that_may_not_be_read_is_not_checked_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = Told()

    look(watch(here("--save", str(tmp_path / "file")), told))

    failed = [fact for fact in told.facts() if isinstance(fact, SourceFailed)]
    assert len(failed) == 1 and "is not a directory" in failed[0].reason


@pytest.mark.skipif(os.getuid() != 0, reason="a mount namespace of its own needs root")
def test_folder_in_a_mount_namespace_of_the_ranks_is_seen_through_their_root(tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=1m none {tmp_path} && mkdir -p {tmp_path}/iter_0000004 && "
        f"touch {tmp_path}/iter_0000004/__0_0.distcp && echo ready && read line"
    )
    rank = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdout is not None
    told = Told()
    try:
        if rank.stdout.readline().strip() != "ready":
            pytest.skip("no mount namespaces here")
        look(watch(WatchedJob(("train", "--save", str(tmp_path)), rank.pid, rank.pid, 0), told))
    finally:
        rank.communicate("\n")

    (fact,) = told.seen()
    assert (fact.root, fact.folders[0].missing) == (str(tmp_path), (".metadata",))
    space = next(fact for fact in told.facts() if isinstance(fact, DiskSpace) and fact.purpose == "save")
    assert space.total_bytes == 1 << 20


def test_flags_of_launchers_and_frameworks_name_their_folders_and_models_on_a_hub_are_none() -> None:
    argv = (
        "torchrun",
        "--nproc_per_node",
        "8",
        "train.py",
        "--save_dir=/a",
        "--save",
        "true",
        "--load",
        "7",
        "--model",
        "Qwen/Qwen3-8B",
        "trainer.default_local_dir=/b",
        "--ref_model",
        "./ref",
        "--resume_from_checkpoint",
        "s3://bucket/x",
        "--mcore_model",
        "/c",
    )

    assert [(item.flag, item.path, item.role) for item in named_paths(argv)] == [
        ("--save_dir", "/a", "save"),
        ("trainer.default_local_dir", "/b", "save"),
        ("--ref_model", "./ref", "load"),
        ("--mcore_model", "/c", "load"),
    ]


def test_flags_that_a_script_around_the_launcher_hides_are_read_from_the_rank(tmp_path: Path) -> None:
    torch_dist(tmp_path / "save/iter_0000004")
    rank = subprocess.Popen(
        [sys.executable, "-c", "input()", "--save", str(tmp_path / "save")], stdin=subprocess.PIPE
    )
    told = Told()
    try:
        one = watch(WatchedJob(("bash", "train.sh"), os.getpid(), rank.pid), told)
        look(one)
    finally:
        rank.communicate(b"\n")
    look(one)  # the rank is gone, what it was told is not

    assert [fact.root for fact in told.seen()] == [str(tmp_path / "save")]
