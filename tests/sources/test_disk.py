"""Free space as the job's user may use it: statvfs of real file systems, a real quota where a loop device may
be mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import DiskSpace, Unparsed
from diag.sources.storage import disk
from diag.text.errors import SourceUnavailable


def seen(payload: object) -> DiskSpace:
    (fact,) = disk.parse(Record(disk.SOURCE, payload))
    assert isinstance(fact, DiskSpace)
    return fact


def test_path_that_is_not_there_yet_is_told_by_the_folder_above(tmp_path: Path) -> None:
    there, later = (
        seen(disk.read(str(tmp_path), "save")),
        seen(disk.read(str(tmp_path / "out/v0/checkpoint-1"), "save")),
    )

    assert (there.total_bytes, there.file_system) == (later.total_bytes, later.file_system)
    assert later.path == str(tmp_path / "out/v0/checkpoint-1")
    assert (
        0
        < later.available_bytes
        <= later.total_bytes
        == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    )


def test_space_reserved_for_root_is_no_users_space() -> None:
    payload = {
        "path": "/out",
        "purpose": "save",
        "frsize": 4096,
        "blocks": 1000,
        "bfree": 60,
        "bavail": 10,
        "files": 0,
        "favail": 0,
    }

    assert seen({**payload, "uid": 1000}).available_bytes == 40960
    assert seen({**payload, "uid": 0}).available_bytes == 245760
    assert seen(payload).total_inodes is None  # btrfs says 0 inodes and has no limit of them


def test_path_with_a_nul_is_unavailable_and_not_a_crash() -> None:
    with pytest.raises(SourceUnavailable):
        disk.read("/tmp/a\0b", "save")


@pytest.mark.parametrize("payload", [None, {}, {"path": 3}, {"path": "/", "frsize": -1}, [1, 2]])
def test_what_is_no_reading_is_unparsed(payload: object) -> None:
    (fact,) = disk.parse(Record(disk.SOURCE, payload))

    assert isinstance(fact, Unparsed)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mkfs.ext4"), reason="needs root and mkfs.ext4")
def test_quota_of_a_user_is_what_is_left_of_it(tmp_path: Path) -> None:
    image, folder = tmp_path / "image", tmp_path / "mnt"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "quota", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop,usrquota", str(image), str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no loop mount with quotas here: {mounted.stderr.decode()}")
    try:
        if not shutil.which("setquota"):
            pytest.skip("setquota is not installed")
        subprocess.run(["setquota", "-u", "4242", "0", "10240", "0", "0", str(folder)], check=True)
        (folder / "file").write_bytes(b"0" * (1 << 20))
        os.chown(folder / "file", 4242, 4242)

        fact = seen(disk.read(str(folder), "save", uid=4242))
        of_another = seen(disk.read(str(folder), "save", uid=4243))

        assert fact.quota_bytes == (10 << 20) - (1 << 20)
        assert (fact.file_system, of_another.quota_bytes) == ("ext4", None)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
