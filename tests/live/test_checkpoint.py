"""Checkpoints and a full disk under `diag run`: real files, a real ENOSPC on a real file system."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.liverun import DIAG, LiveRun, live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SAVER = str(Path(__file__).parent / "saver.py")
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


def run(tmp_path: Path, mode: str, root: Path) -> Any:
    command = [sys.executable, SAVER, mode, str(root), "--save", str(root)]
    return live_run(tmp_path, command, env=RANK)


@contextlib.contextmanager
def small_disk(tmp_path: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)],
            check=False,
            capture_output=True,
        ).returncode
        != 0
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def found(job: LiveRun, finding: str) -> dict[str, Any]:
    change: dict[str, Any] = job.until(lambda: job.opened(finding), 60)
    return dict(change["finding"])


def replayed(job: LiveRun) -> dict[str, str]:
    answer = subprocess.run(
        [*DIAG, "replay", "--json", str(job.run_dir)], capture_output=True, text=True, check=False, timeout=60
    )
    return {finding["id"]: finding["cause"] for finding in json.loads(answer.stdout)["findings"]}


def test_disk_that_fills_in_the_second_save_is_named_with_its_numbers_and_the_tracker_with_it(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path, 5) as disk, run(tmp_path, "fills", disk / "save") as job:
        code = job.wait(90)
        full, corrupt, missing = (
            found(job, name) for name in ("disk-full", "checkpoint-corrupt", "checkpoint-missing")
        )

        assert code == 1
        assert (full["cause"], full["severity"], full["ranks"]) == ("no_space", "critical", [])
        assert "of 5 MiB free (tmpfs)" in full["summary"]
        assert (
            "iter_0000008 is not whole" in corrupt["summary"]
            and "the last whole one is iter_0000004" in corrupt["summary"]
        )
        assert (missing["cause"], "iter_0000008" in missing["summary"]) == ("tracker_broken", True)
        assert replayed(job)["disk-full"] == "no_space"


def test_save_that_will_not_fit_is_warned_of_before_it_begins(tmp_path: Path) -> None:
    with small_disk(tmp_path, 5) as disk, run(tmp_path, "steps", disk / "save") as job:
        # Of less than 16 MiB it is full from the first look on; how large a save is, the first one tells.
        job.until(lambda: found(job, "disk-full")["cause"] == "next_save", 60)
        finding = found(job, "disk-full")

        assert finding["severity"] == "warning"
        assert "the next checkpoint (3 MiB, like iter_0000004) will not fit" in finding["summary"]


def test_rank_killed_in_its_save_leaves_a_checkpoint_that_is_named_with_the_one_to_go_on_from(
    tmp_path: Path,
) -> None:
    with run(tmp_path, "dies", tmp_path / "save") as job:
        job.wait(90)
        corrupt, missing = found(job, "checkpoint-corrupt"), found(job, "checkpoint-missing")

        assert "iter_0000008 is not whole (missing .metadata" in corrupt["summary"]
        assert "while it was written" in corrupt["summary"]
        assert f"--load {tmp_path}/save --ckpt-step 4" in corrupt["advice"]
        assert missing["cause"] == "tracker_broken"
        assert {"checkpoint-corrupt", "checkpoint-missing"} <= set(replayed(job))


def test_truncated_file_of_a_save_that_called_itself_successful_is_found_at_the_end(tmp_path: Path) -> None:
    with run(tmp_path, "cuts", tmp_path / "save") as job:
        code = job.wait(90)
        finding = found(job, "checkpoint-corrupt")

        assert (code, finding["cause"]) == (0, "truncated")
        assert "damaged __0_1.distcp (cut off: no end of a zip file)" in finding["summary"]
