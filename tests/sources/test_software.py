"""What a process runs on, by its memory map and the names beside its libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import SoftwareSeen, Unparsed
from diag.sources.host import software
from diag.text.errors import SourceUnavailable

NAMES = (
    "torch-2.13.0+cpu.dist-info",
    "flash_attn-2.8.3.post1.dist-info",
    "PyYAML-6.0.egg-info",
    "setuptools-66.1.1-py3.11.egg-info",
    "ms_swift-4.0.0.dev0.dist-info",
    "nvidia_nccl_cu12-2.28.9.dist-info",
)
STRANGE = (
    "torch",
    "README.txt",
    "x.dist-info",
    "-1.dist-info",
    "a" * 150 + "-1.dist-info",
    "_x-1.0.dist-info",
)


def of(proc: Path, folder: Path, lines: str = "") -> dict:
    (proc / "7").mkdir(parents=True, exist_ok=True)
    (proc / "7/maps").write_text(
        f"7f00-7f01 r-xp 00000000 fe:00 12 {folder}/torch/lib/libtorch_cpu.so\n{lines}"
    )
    return dict(software.read(7, proc))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of them, which the process sees as we do."""
    folder = tmp_path / "venv/lib/python3.12/site-packages"
    folder.mkdir(parents=True)
    for name in (*NAMES, *STRANGE):
        (folder / name).mkdir(exist_ok=True)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/root").symlink_to("/")
    monkeypatch.setattr(software, "JobFiles", lambda pid, proc: _Here())
    return folder


class _Here:
    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def names(self, path: str) -> list[str]:
        return sorted(one.name for one in Path(path).iterdir())


def test_packages_are_those_installed_beside_the_libraries_by_pips_names(
    tmp_path: Path, packages: Path
) -> None:
    found = of(tmp_path / "proc", packages)

    assert found["packages"] == {
        "flash-attn": "2.8.3.post1",
        "ms-swift": "4.0.0.dev0",
        "nvidia-nccl-cu12": "2.28.9",
        "pyyaml": "6.0",
        "setuptools": "66.1.1",
        "torch": "2.13.0+cpu",
    }
    assert found["python"] == "3.12"


def test_package_in_two_folders_has_both_versions(tmp_path: Path, packages: Path) -> None:
    other = tmp_path / "home/.local/lib/python3.12/site-packages"
    (other / "torch-2.12.0.dist-info").mkdir(parents=True)

    found = of(tmp_path / "proc", packages, f"7f02-7f03 r-xp 00000000 fe:00 13 {other}/x/y.so\n")

    assert found["packages"]["torch"] == "2.12.0 and 2.13.0+cpu"


def test_process_without_libraries_of_packages_has_none_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_text("7f00-7f01 r-xp 00000000 fe:00 12 /usr/lib/libc.so.6\n")

    assert software.read(7, tmp_path)["packages"] is None


def test_memory_map_that_may_not_be_read_is_no_reading(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable):
        software.read(7, tmp_path)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (x@y)\n",
            "570.124.06",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n",
            "535.183.01",
        ),
        ("something else\n", ""),
    ],
)
def test_driver_is_read_where_the_kernel_shows_it(
    tmp_path: Path, packages: Path, text: str, version: str
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text)

    assert of(tmp_path / "proc", packages)["driver"] == version


def test_real_process_is_read_and_parsed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import numpy; print(numpy.__version__, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        version = process.stdout.readline().strip()
        payload = software.read(process.pid)
        process.kill()

    (fact,) = software.parse(Record(software.SOURCE, payload, 3))
    assert isinstance(fact, SoftwareSeen) and fact.packages is not None
    assert dict(fact.packages)["numpy"] == version
    assert fact.python == f"{sys.version_info[0]}.{sys.version_info[1]}" and fact.kernel


@pytest.mark.parametrize("payload", [{}, {"packages": 3, "pid": "x"}, {"packages": {3: [4]}}])
def test_payload_of_any_content_is_parsed(payload: dict) -> None:
    (fact,) = software.parse(Record(software.SOURCE, payload, 0))

    assert isinstance(fact, Unparsed)
