"""Versions by mapped files: of real processes, and of packages laid out as pip does."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from diag.sources.host.versions import versions
from tests.inject.targets import WAIT, Target, plain_env

STATUS = "".join(
    f"{name}:\t{number}\t{number}\t{number}\t{number}\n"
    for name, number in (("Uid", os.geteuid()), ("Gid", os.getegid()))
)


def test_python_of_a_process_that_has_a_library_of_it_mapped() -> None:
    with Target("import json, ctypes\n" + WAIT, plain_env()) as rank:
        found = versions(rank.pid)

    assert found.get("python") == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "torch" not in found


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_says_the_version_of_the_package_that_is_loaded() -> None:
    code = "import sys, torch\nprint('ready', torch.__version__, flush=True)\nsys.stdin.read()"
    with Target(code, plain_env()) as rank:
        assert versions(rank.pid)["torch"] == rank.said[0]


def test_nccl_is_named_by_the_package_beside_its_library(tmp_path: Path) -> None:
    # given a process's /proc with the packages of a rank
    packages = tmp_path / "packages"
    (packages / "nvidia/nccl/lib").mkdir(parents=True)
    (packages / "nvidia_nccl_cu12-2.28.9.dist-info").mkdir()
    (packages / "torch").mkdir()
    (packages / "torch/version.py").write_text(
        "from typing import Optional\n__version__ = '2.13.0+cu126'\ndebug = False\n"
    )
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "root").symlink_to("/")
    (folder / "status").write_text(STATUS)
    (folder / "maps").write_text(
        f"7f0000000000-7f0000001000 r--p 00000000 00:1d 5 {packages}/nvidia/nccl/lib/libnccl.so.2\n"
        f"7f0000002000-7f0000003000 r--p 00000000 00:1d 6 {packages}/torch/lib/libtorch_cuda.so\n"
    )

    assert versions(7, tmp_path / "proc") == {"torch": "2.13.0+cu126", "nccl": "2.28.9"}


@pytest.mark.parametrize(
    "maps", [b"", b"\xff\xfe\x00 /torch/lib/libtorch.so\n", b"7f0 /nowhere/torch/lib/libtorch.so\n" * 3]
)
def test_what_cannot_be_told_is_left_out(maps: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "maps").write_bytes(maps)
    (folder / "status").write_text(STATUS)

    assert versions(7, tmp_path) == {}


def test_process_that_is_gone_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        versions(os.getpid(), tmp_path)
