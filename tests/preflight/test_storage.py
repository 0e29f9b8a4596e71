"""Where CMD saves and caches: full, without inodes, read-only, not there; real file systems in a mount
namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.preflight.launch_facts import launch_facts
from diag.preflight.line import Line
from diag.preflight.storage import check_caches, check_disk

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="a mount namespace of its own needs root and unshare (util-linux)",
)


def doctor_after(setup: str, *words: str, **env: str) -> dict[str, Any]:
    """`diag doctor` in a mount namespace in which `setup` was run; nothing of it reaches the machine."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV") if name in os.environ}
    script = f'mount --make-rprivate / && {setup} && exec "$0" -m diag doctor --json -- "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", script, sys.executable, *words],
        env={**kept, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 10), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def disk_lines(document: dict[str, Any], what: str = "disk") -> list[tuple[str, str, str]]:
    return [
        (line["status"], line["said"], line["remedy"]) for line in document["checks"] if line["what"] == what
    ]


def test_room_for_checkpoints_is_ok(tmp_path: Path) -> None:
    first = next(iter(check_disk(launch_facts(["python", "train.py", "--output_dir", str(tmp_path)], {}))))

    assert first.status == "ok" and f"free in {tmp_path} (--output_dir)" in first.said


@pytest.mark.parametrize(("program", "folder"), [("swift", "output"), ("megatron", "megatron_output")])
def test_default_folder_of_ms_swift_is_looked_at(program: str, folder: str) -> None:
    assert (
        f"free in {folder}" in next(iter(check_disk(launch_facts([program, "sft", "--model", "m"], {})))).said
    )


def test_checkpoint_that_is_larger_than_the_room(tmp_path: Path) -> None:
    huge = ["megatron", "sft", "--model", "Qwen/Qwen3-235B-A22B", "--output_dir", str(tmp_path)]
    if shutil.disk_usage(tmp_path).free > 3 << 40:
        pytest.skip("this machine has room for it")

    found = [
        line for line in check_disk(launch_facts(huge, {"NPROC_PER_NODE": "8"})) if line.status == "problem"
    ]

    assert [line.id for line in found] == ["disk-full"] and "one checkpoint of CMD takes about" in found[
        0
    ].said


def test_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")

    (line,) = check_disk(launch_facts(["python", "t.py", "--output_dir", str(tmp_path / "out")], {}))

    assert (line.status, line.id) == (
        "problem",
        "checkpoint-write-error",
    ) and "is not a directory" in line.said


def test_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")

    (line,) = check_disk(launch_facts(["python", "t.py", "--save", str(tmp_path / "out")], {}))

    assert line.status == "problem" and "is a link to" in line.said


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_folder_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    code = (
        "import os, sys; from diag.preflight.launch_facts import launch_facts; from diag.preflight.storage import check_disk;"
        "list(check_disk(launch_facts(['python', 't.py'], {})));"
        "os.setegid(65534); os.seteuid(65534);"
        "print(*[(line.status, line.said) for line in check_disk(launch_facts(['python', 't.py', '--output_dir', sys.argv[1]], {}))])"
    )
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)

    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "theirs/out")], capture_output=True, text=True, check=True
    ).stdout

    assert "'problem'" in told and "user 65534 cannot create it" in told


@needs_mounts
def test_full_file_system(tmp_path: Path) -> None:
    setup = f"mount -t tmpfs -o size=64m tmpfs {tmp_path} && dd if=/dev/zero of={tmp_path}/x bs=1M count=62 status=none"

    (problem, note) = disk_lines(doctor_after(setup, "python", "t.py", "--output_dir", f"{tmp_path}/out"))

    assert problem[0] == "problem" and problem[1].startswith("2 MiB and ")
    assert note[0] == "note" and "in memory (tmpfs)" in note[1]


@needs_mounts
def test_file_system_without_inodes(tmp_path: Path) -> None:
    setup = f"mount -t tmpfs -o size=4g,nr_inodes=20 tmpfs {tmp_path} && for n in $(seq 19); do : > {tmp_path}/$n; done"

    document = doctor_after(setup, "python", "t.py", "--output_dir", str(tmp_path))

    assert disk_lines(document)[0][0] == "problem" and "4 GiB and 0 files free" in disk_lines(document)[0][1]
    assert "df -i" in disk_lines(document)[0][2]
    assert "disk-full" in [one["id"] for one in document["findings"]]


@needs_mounts
def test_read_only_file_system(tmp_path: Path) -> None:
    setup = f"mount -t tmpfs -o size=4g,ro tmpfs {tmp_path}"

    document = doctor_after(setup, "megatron", "sft", "--model", "m", "--save", f"{tmp_path}/out")

    ((status, said, _),) = disk_lines(document)
    assert status == "problem" and said.endswith(
        f"is on a file system that is mounted read-only ({tmp_path})"
    )
    assert "checkpoint-write-error" in [one["id"] for one in document["findings"]]


@needs_mounts
def test_caches_that_are_full_or_read_only(tmp_path: Path) -> None:
    full, fixed = tmp_path / "full", tmp_path / "fixed"
    setup = f"mkdir {full} {fixed} && mount -t tmpfs -o size=16m tmpfs {full} && mount -t tmpfs -o size=4g,ro tmpfs {fixed}"

    document = doctor_after(
        setup, "python", "t.py", TRITON_CACHE_DIR=str(full), HF_HOME=str(fixed), TMPDIR=str(fixed)
    )

    said = [
        line[1]
        for name in ("caches", "temporary files")
        for line in disk_lines(document, name)
        if line[0] == "problem"
    ]
    assert f"free in TRITON_CACHE_DIR={full}" in "".join(
        said
    ) and f"HF_HOME={fixed} is on a file system" in "".join(said)
    assert f"TMPDIR={fixed} is on a file system" in "".join(said)


def test_caches_with_room_are_one_line(tmp_path: Path) -> None:
    names = ("TMPDIR", "HF_HOME", "MODELSCOPE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

    found = list(check_caches(launch_facts(["python", "t.py"], {name: str(tmp_path) for name in names})))

    assert [(line.what, line.status) for line in found] == [("caches", "ok")]


def test_each_node_would_keep_its_own_part(tmp_path: Path) -> None:
    def notes(nodes: str) -> list[Line]:
        command = [
            "torchrun",
            "--nnodes",
            nodes,
            "--nproc_per_node",
            "8",
            "t.py",
            "--output_dir",
            str(tmp_path),
        ]
        return [
            line for line in check_disk(launch_facts(command, {})) if "each would hold a part" in line.said
        ]

    assert len(notes("2")) == 1 and notes("1") == []


def test_cache_that_nodes_would_share_is_told_where_it_is_of_one_node(tmp_path: Path) -> None:
    def notes(nodes: str, **env: str) -> list[Line]:
        command = ["torchrun", "--nnodes", nodes, "--nproc_per_node", "8", "t.py"]
        facts = launch_facts(command, {"HOME": str(tmp_path), **env})
        return [line for line in check_caches(facts) if "preprocesses by itself" in line.said]

    (absent,) = notes("2", MODELSCOPE_CACHE=str(tmp_path / "shared"))
    (there,) = notes("2", MODELSCOPE_CACHE=str(tmp_path))

    assert (absent.status, "is not there yet and is on" in absent.said) == ("note", True)
    assert "is not there" not in there.said
    assert notes("1", MODELSCOPE_CACHE=str(tmp_path)) == [] and notes("2") == []
