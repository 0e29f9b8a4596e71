"""Real runs, as `diag runs` and `diag diff` tell them afterwards and meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.liverun import DIAG, LiveRun, live_run

# Steps, seconds of each, and the exit code. numpy's library is in a folder of packages, which is read meanwhile.
JOB = """
import os, sys, time, numpy
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(float(sys.argv[2]))
    print(f"step {step}/{sys.argv[1]} loss: {2.0 / step:.4f}", flush=True)
if sys.argv[3:]:
    print("the cache of shards is corrupt", flush=True)
    sys.exit(int(sys.argv[3]))
"""
SECRET = "hf_s3cretvalue0123456789"
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def diag(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    places = {
        "DIAG_RUN_ROOT": str(root),
        "XDG_STATE_HOME": str(root.parent / "state"),
        "TMPDIR": str(root.parent),
    }
    return subprocess.run(
        [*DIAG, *words], capture_output=True, text=True, env={**os.environ, **places}, timeout=60, check=False
    )


def runs(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(diag(root, "runs", "--json").stdout)["runs"]
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two runs that finished, and one that failed with another environment."""
    place = tmp_path_factory.mktemp("runs")
    (script := place / "train.py").write_text(JOB)
    for words, env in (
        (["20", "0.5"], {}),
        (["20", "0.5"], {}),
        (["20", "0.5", "3"], {"NCCL_SOCKET_IFNAME": "eth9", "HF_TOKEN": SECRET, "NCCL_SECRET_KEY": SECRET}),
    ):
        with live_run(place, [sys.executable, str(script), *words], env={**RANK, **env}) as run:
            run.wait(60)
    yield place / "runs"


def test_runs_are_listed_with_their_ends_newest_first(root: Path) -> None:
    found = runs(root)

    assert [(one["state"], one["returncode"]) for one in found] == [
        ("failed", 3),
        ("finished", 0),
        ("finished", 0),
    ]
    assert all(5 < one["seconds"] < 60 and one["evidence_kept"] for one in found)
    assert [finding["id"] for finding in found[0]["findings"] if finding["severity"] == "critical"] == [
        "rank-died"
    ]


def test_minus_one_replays_the_last_run(root: Path) -> None:
    told = diag(root, "replay", "-1", "--json")

    assert told.returncode == 10 and json.loads(told.stdout)["job"]["state"] == "failed"


def test_last_run_is_compared_with_the_last_one_that_finished(root: Path) -> None:
    told = json.loads(diag(root, "diff", "--json").stdout)

    found = {(one["part"], one["name"]): (one["a"], one["b"]) for one in told["differences"]}
    assert found["environment", "NCCL_SOCKET_IFNAME"] == ("-", "eth9")
    assert found["command", "command"] == ("-", "3")
    assert found["end", "state"] == ("finished", "failed (exit 3)")
    assert "the cache of shards is corrupt" in [
        one["b"] for one in told["differences"] if one["part"] == "log"
    ]
    assert {"versions", "nodes", "loss"} <= set(told["alike"])
    assert (told["before"]["worked"], told["before"]["on_these_nodes"], told["before"]["new"]) == (2, 2, {})


def test_runs_alike_differ_in_nothing_that_was_compared(root: Path) -> None:
    told = json.loads(diag(root, "diff", "-3", "-2", "--json").stdout)

    assert told["differences"] == []


def test_nothing_that_is_remembered_has_a_secret_in_it(root: Path) -> None:
    runs(root)
    kept = [path for path in root.rglob("*") if path.is_file()]

    assert {"facts.json", "run.json", "runs.sqlite"} <= {path.name for path in kept}
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []
    assert {path.stat().st_mode & 0o777 for path in kept if path.name in ("facts.json", "runs.sqlite")} == {
        0o600
    }


def test_living_run_is_told_as_running_and_is_not_removed(tmp_path: Path) -> None:
    with live_run(tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"], env=RANK) as run:
        wait_for_hub(run)

        assert [one["state"] for one in runs(run.root)] == ["running"]
        removed = diag(run.root, "runs", "rm", "-1", "--yes")
        assert removed.returncode == 1 and "its job may still run" in removed.stderr
        assert run.process.poll() is None


def wait_for_hub(run: LiveRun) -> None:
    run.until(lambda: run.run_dir is not None and run.run_json().get("url"), 60)
