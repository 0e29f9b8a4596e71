"""Which NCCL a process has loaded, by its map of memory and the file."""

from __future__ import annotations

import os
from pathlib import Path

from diag.sources.collectives.nccl_library import library_of, version_of
from tests.rasjobs import with_nccl


def test_library_is_found_in_the_map_of_a_real_process_and_its_version_in_the_file(tmp_path: Path) -> None:
    with with_nccl(tmp_path, "2.28.9") as pid:
        library = library_of(pid)
        assert library == str(tmp_path / "libnccl.so.2")
        assert version_of(pid, library) == "2.28.9"


def test_library_that_was_replaced_on_disk_is_still_seen(tmp_path: Path) -> None:
    with with_nccl(tmp_path, "2.28.9") as pid:
        (tmp_path / "libnccl.so.2").unlink()
        assert library_of(pid) == str(tmp_path / "libnccl.so.2")


def test_process_without_it_has_none_and_one_that_is_gone_cannot_be_seen() -> None:
    assert library_of(os.getpid()) == ""
    assert library_of(1 << 22) is None


def test_words_that_cross_two_reads_are_found(tmp_path: Path) -> None:
    words = b"NCCL version 2.28.19+cuda13.0\0"
    for shift in range(len(words) + 2):
        path = tmp_path / "libnccl.so.2"
        path.write_bytes(b"\0" * ((1 << 20) - shift) + words)
        assert version_of(os.getpid(), str(path)) == "2.28.19"


def test_version_in_the_name_or_of_the_wheel_beside_it_needs_no_look_into_the_file(tmp_path: Path) -> None:
    assert version_of(1, "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7") == "2.27.7"
    folder = tmp_path / "site-packages" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").write_bytes(b"nothing of it")
    (tmp_path / "site-packages" / "nvidia_nccl_cu12-2.28.9.dist-info").mkdir()
    assert version_of(os.getpid(), str(folder / "libnccl.so.2")) == "2.28.9"


def test_file_without_the_words_or_gone_tells_no_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"NCCL version two")
    assert version_of(os.getpid(), str(tmp_path / "libnccl.so.2")) == ""
    assert version_of(os.getpid(), "/no/such/libnccl.so.2") == ""
    assert version_of(1 << 22, "/usr/lib/libnccl.so.2") == ""
