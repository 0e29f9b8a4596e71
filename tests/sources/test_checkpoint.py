"""Checkpoints on disk, made by the real writers where they are small: whole ones, each way of being broken,
hostile folders."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import CheckpointFolder, CheckpointsSeen, Unparsed
from diag.sources.storage import checkpoint
from diag.sources.storage.checkpoint import CheckpointReader
from diag.text.errors import SourceUnavailable


def seen(root: Path, role: str = "save") -> CheckpointsSeen:
    record = Record(
        checkpoint.SOURCE, json.loads(json.dumps(CheckpointReader(str(root), role).sample())), emitted=5.0
    )
    (fact,) = checkpoint.parse(record)
    assert isinstance(fact, CheckpointsSeen)
    return fact


def the(root: Path) -> CheckpointFolder:
    (folder,) = seen(root).folders
    return folder


def zipped(path: Path) -> None:
    """As torch.save ends a file: a zip without a comment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data/0", b"1" * 500)


def safetensors(path: Path, size: int = 64) -> None:
    # safetensors 0.8.0, save_file({"a": torch.zeros(100, 100), "b": torch.ones(3)}, ...) begins:
    #   b'\x80\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32","shape":[100,100],"data_offsets":[0,40000]},"b":...
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": tensor}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\1" * size)


def torch_dist(folder: Path, ranks: int = 2) -> None:
    names = [f"__{rank}_{part}.distcp" for rank in range(ranks) for part in (0, 1)]
    for name in (*names, "common.pt"):
        zipped(folder / name)
    # `.metadata` is a pickle; file names stand in it as they are (torch 2.13, checked on a real one below)
    (folder / ".metadata").write_bytes(
        b"\x80\x04\x95" + b"\x94".join(b"\x8c\x0c" + name.encode() for name in names)
    )
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')


def deepspeed(folder: Path, ranks: int = 4) -> None:
    zipped(folder / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        zipped(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def hf(folder: Path) -> None:
    for number in (1, 2):
        safetensors(folder / f"model-0000{number}-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    zipped(folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text("{}")


def legacy(folder: Path) -> None:
    for tensor in (0, 1):
        for stage in (0, 1):
            zipped(folder / f"mp_rank_{tensor:02d}_{stage:03d}" / "model_optim_rng.pt")


@pytest.mark.parametrize(
    ("make", "name", "kind", "step"),
    [
        (torch_dist, "iter_0000500", "torch_dist", 500),
        (deepspeed, "global_step500", "deepspeed", 500),
        (hf, "checkpoint-500", "safetensors", 500),
        (legacy, "iter_0000500", "megatron_legacy", 500),
        (legacy, "release", "megatron_legacy", None),
    ],
)
def test_whole_checkpoint_misses_nothing(
    make: Callable[[Path], None], name: str, kind: str, step: int | None, tmp_path: Path
) -> None:
    make(tmp_path / name)

    folder = the(tmp_path)

    assert (folder.kind, folder.iteration, folder.missing, folder.damaged, folder.empty_files) == (
        kind,
        step,
        (),
        (),
        0,
    )
    assert folder.size_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("make", "gone", "missing"),
    [
        (torch_dist, (".metadata", "metadata.json"), (".metadata",)),
        (torch_dist, ("metadata.json",), ("metadata.json",)),
        (torch_dist, ("common.pt",), ("common.pt",)),
        (torch_dist, ("__1_0.distcp",), ("__1_0.distcp",)),
        (hf, ("model-00001-of-00002.safetensors",), ("model-00001-of-00002.safetensors",)),
        (hf, ("model.safetensors.index.json",), ("model.safetensors.index.json",)),
        (hf, ("trainer_state.json",), ("trainer_state.json",)),
        (
            deepspeed,
            ("bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",),
            ("bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",),
        ),
    ],
)
def test_what_a_cut_off_save_did_not_write_is_named(
    make: Callable[[Path], None], gone: tuple[str, ...], missing: tuple[str, ...], tmp_path: Path
) -> None:
    make(tmp_path / "checkpoint-4")
    for name in gone:
        (tmp_path / "checkpoint-4" / name).unlink()

    assert the(tmp_path).missing == missing


def test_safetensors_without_optimizer_as_ms_swift_saves_them_are_whole_with_common_alone(
    tmp_path: Path,
) -> None:
    # ms-swift 4.6.0, --save_safetensors true --no_save_optim true: only common.pt below iter_0000004
    safetensors(tmp_path / "checkpoint-4/model.safetensors")
    zipped(tmp_path / "checkpoint-4/iter_0000004/common.pt")
    (tmp_path / "checkpoint-4/latest_checkpointed_iteration.txt").write_text("4")

    assert (the(tmp_path).kind, the(tmp_path).missing) == ("safetensors", ())


def test_tracker_within_a_checkpoint_that_names_a_folder_which_is_not_there(tmp_path: Path) -> None:
    safetensors(tmp_path / "checkpoint-4/model.safetensors")
    (tmp_path / "checkpoint-4/latest_checkpointed_iteration.txt").write_text("4")

    assert the(tmp_path).missing == ("iter_0000004/ (latest_checkpointed_iteration.txt names it)",)


@pytest.mark.parametrize(
    ("name", "keep", "why"),
    [
        ("model-00002-of-00002.safetensors", -5, "of "),
        ("model-00002-of-00002.safetensors", 4, "shorter than its header"),
        ("model-00002-of-00002.safetensors", 30, "shorter than its header"),
        ("optimizer.pt", -5, "cut off: no end of a zip file"),
        ("optimizer.pt", 0, "empty"),
    ],
)
def test_truncated_file_is_named_with_what_is_left_of_it(
    name: str, keep: int, why: str, tmp_path: Path
) -> None:
    hf(tmp_path / "checkpoint-4")
    path = tmp_path / "checkpoint-4" / name
    path.write_bytes(path.read_bytes()[:keep])

    (damaged,) = the(tmp_path).damaged
    assert damaged.startswith(name + " (") and why in damaged


def test_file_of_zeros_as_a_crashed_node_leaves_it_is_damaged(tmp_path: Path) -> None:
    hf(tmp_path / "checkpoint-4")
    for name in ("optimizer.pt", "model-00001-of-00002.safetensors"):
        path = tmp_path / "checkpoint-4" / name
        path.write_bytes(b"\0" * path.stat().st_size)

    assert the(tmp_path).damaged == (
        "model-00001-of-00002.safetensors (no safetensors header)",
        "optimizer.pt (begins and ends with zeros)",
    )


def test_old_format_of_torch_that_ends_in_zeros_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4/pytorch_model.bin").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9" + b"\0" * 100)

    assert (the(tmp_path).kind, the(tmp_path).damaged) == ("hf", ())


def test_trackers_are_read_and_folders_that_are_no_checkpoints_are_left_out(tmp_path: Path) -> None:
    torch_dist(tmp_path / "iter_0000500")
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("500\n")

    fact = seen(tmp_path)

    assert fact.tracker == ("latest_checkpointed_iteration.txt", "500")
    assert [Path(folder.path).name for folder in fact.folders] == ["iter_0000500"]


def test_link_of_ms_swift_to_its_last_checkpoint_is_a_tracker(tmp_path: Path) -> None:
    hf(tmp_path / "checkpoint-8")
    (tmp_path / "last-checkpoint").symlink_to("checkpoint-8")

    assert seen(tmp_path).tracker == ("last-checkpoint", "checkpoint-8")


def test_path_of_one_checkpoint_is_that_checkpoint(tmp_path: Path) -> None:
    hf(tmp_path / "checkpoint-8")

    folder = the(tmp_path / "checkpoint-8")

    assert (folder.path, folder.iteration, folder.missing) == (str(tmp_path / "checkpoint-8"), 8, ())


def test_model_that_hf_trainer_saves_beside_its_checkpoints_hides_none_of_them(tmp_path: Path) -> None:
    safetensors(tmp_path / "out/model.safetensors")
    hf(tmp_path / "out/checkpoint-500")

    assert [Path(folder.path).name for folder in seen(tmp_path / "out").folders] == ["checkpoint-500"]


def test_folder_that_is_not_there_is_told_and_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert not seen(tmp_path / "none").exists
    with pytest.raises(SourceUnavailable, match="not a directory"):
        CheckpointReader(str(tmp_path / "file")).sample()


def test_loops_odd_names_fifos_and_holes_are_no_crash_and_no_hang(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    hf(folder)
    (folder / "loop").symlink_to(folder)
    (folder / "self.safetensors").symlink_to(folder / "self.safetensors")
    (folder / "gone.pt").symlink_to(folder / "nothing")
    os.mkfifo(folder / "pipe.safetensors")
    Path(os.fsdecode(os.fsencode(folder) + b"/a\nb\xff.bin")).write_bytes(b"")
    deep = folder / "a/b/c/d"
    deep.mkdir(parents=True)

    found = the(tmp_path)

    assert found.empty_files == 1
    assert not found.listed  # deeper than we look: nothing is said to be missing in it


def test_look_at_100000_files_is_bounded_and_says_that_it_was_not_complete(tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000001"
    folder.mkdir()
    template = folder / "__0_0.distcp"
    template.write_bytes(b"1")
    for number in range(1, 30_000):  # links: cheap to make, and each is an entry
        os.link(template, folder / f"__{number}_0.distcp")

    found = the(tmp_path)

    assert found.files < checkpoint.MOST_ENTRIES
    assert not found.listed and found.missing == ()


def test_second_look_at_unchanged_files_reads_no_byte_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf(tmp_path / "checkpoint-4")
    reader = CheckpointReader(str(tmp_path))
    first = reader.sample()
    opened: list[str] = []
    genuine = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **more: opened.append(str(path)) or genuine(path, *rest, **more)
    )

    assert reader.sample() == first
    assert opened == []


def test_few_files_are_opened_in_one_look_those_that_name_others_first_and_the_rest_later(
    tmp_path: Path,
) -> None:
    torch_dist(tmp_path / "iter_0000004", ranks=20)
    reader = CheckpointReader(str(tmp_path))
    os.truncate(tmp_path / "iter_0000004/__19_1.distcp", 100)

    first = reader.sample(most_heads=3)["folders"][0]["heads"]
    later = [reader.sample(most_heads=20)["folders"][0]["heads"] for _ in range(3)][-1]

    assert len(first[".metadata"]["names"]) == 40 and "__19_1.distcp" not in first
    assert later["__19_1.distcp"] == {"bad": "cut off: no end of a zip file"}
    assert "__0_0.distcp" not in later  # whole: no word in the journal


def test_version_folders_of_ms_swift_are_those_of_this_run(tmp_path: Path) -> None:
    old, new = tmp_path / "v0-20261120-120000", tmp_path / "v1-20261121-194515"
    for path in (old, new, tmp_path / "vision-model"):
        path.mkdir()
    os.utime(old, (1000, 1000))

    assert checkpoint.version_folders(str(tmp_path), since=2000) == [str(new)]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        {"folders": 3},
        {"root": "/a", "folders": [3, {"count": -1}, {"count": 1, "bytes": 1, "empty": 0, "changed": "x"}]},
        {"root": "/a", "folders": [], "tracker": [1, 2], "role": 7},
        {
            "root": "/a",
            "folders": [
                {
                    "name": None,
                    "count": 1,
                    "bytes": 1,
                    "empty": 0,
                    "changed": 1,
                    "files": [["a.pt", 3], 7],
                    "heads": {"a.pt": {"bad": 3, "needs": "x"}, "b": 2},
                }
            ],
        },
    ],
)
def test_damaged_payloads_are_unparsed_or_understood_in_part(payload: object) -> None:
    facts = list(checkpoint.parse(Record(checkpoint.SOURCE, payload)))

    assert all(isinstance(fact, (Unparsed, CheckpointsSeen)) for fact in facts) and facts


def test_real_checkpoint_of_torch_names_its_files_and_its_loss_is_seen(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    dcp.save({"a": torch.zeros(1000), "b": torch.ones(50)}, checkpoint_id=str(tmp_path / "checkpoint-1"))
    whole = the(tmp_path)
    shard = tmp_path / "checkpoint-1/__0_0.distcp"
    os.truncate(shard, 1000)
    cut = the(tmp_path)
    shard.unlink()

    assert (whole.kind, whole.missing, whole.damaged) == ("torch_dcp", (), ())
    assert cut.damaged == ("__0_0.distcp (cut off: no end of a zip file)",)
    assert the(tmp_path).missing == ("__0_0.distcp",)
