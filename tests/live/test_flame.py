"""`diag flame` of ranks of a job that really runs under `diag run`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.liverun import DIAG, LiveRun, live_run

pytestmark = pytest.mark.live
RANKS = [sys.executable, str(Path(__file__).parent / "ranks.py")]


def flame(run: LiveRun, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DIAG_RUN_ROOT": str(run.root)}
    return subprocess.run(
        [*DIAG, "flame", *words], capture_output=True, text=True, check=False, timeout=120, env=env, cwd=cwd
    )


def ranks_of(url: str) -> list[dict[str, Any]]:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"{url}/ranks", timeout=15
    ) as answer:
        found: list[dict[str, Any]] = json.load(answer)["ranks"]
    return found


def test_busy_and_waiting_ranks_are_drawn_from_one_command(tmp_path: Path) -> None:
    cwd = tmp_path / "here"
    cwd.mkdir()
    with live_run(tmp_path, [*RANKS, "work", "wait", "wait"]) as run:
        # given a rank that works, one that waits, and one that was killed; all seen by diag
        url = run.until(lambda: run.run_json().get("url"), 60)
        run.until(lambda: len([r for r in ranks_of(url) if r["activity"]]) == 3, 90)
        os.kill(ranks_of(url)[2]["pid"], signal.SIGKILL)
        run.until(lambda: ranks_of(url)[2]["exit"], 60)

        # when the working rank is drawn as SVG
        answer = flame(run, "0", "--seconds", "2", cwd=cwd)

        # then the file has the default name, is XML, and the busy function is in it
        assert (answer.returncode, answer.stdout) == (0, "flame-rank0.svg\n"), answer.stderr
        text = (cwd / "flame-rank0.svg").read_text()
        ET.fromstring(text)
        assert "rank_main (ranks.py:" in text

        # and the waiting rank is drawn too, as a speedscope file
        answer = flame(
            run, "1", "--seconds", "1", "--rate", "20", "--format", "speedscope", "-o", "-", cwd=cwd
        )
        assert answer.returncode == 0, answer.stderr
        document = json.loads(answer.stdout)
        assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
        assert any("waits_for_the_others" in frame["name"] for frame in document["shared"]["frames"])
        assert document["activeProfileIndex"] == 0
        (main,) = [profile for profile in document["profiles"] if "MainThread" in profile["name"]]
        assert main["type"] == "sampled" and len(main["samples"]) == len(main["weights"]) >= 10

        # and both are in the merged graph with their ranks
        answer = flame(run, "all", "--format", "collapsed", "-o", "-", cwd=cwd)
        assert "[0-1];rank_main" in answer.stdout, answer.stderr
        assert re.search(r"waits_for_the_others \(tests/live/ranks.py:\d+\) \[1\] 1", answer.stdout)

        # and what cannot be drawn is said
        dead, unknown = flame(run, "2", cwd=cwd), flame(run, "99", cwd=cwd)
        assert (dead.returncode, unknown.returncode) == (1, 1)
        assert "rank 2 has ended" in dead.stderr and "--from" in dead.stderr
        assert "rank 99 was not seen" in unknown.stderr and "ranks 0-2" in unknown.stderr

        # and the same run can be drawn from what was recorded, while it lives
        assert run.run_dir is not None
        answer = flame(run, "1", "--from", str(run.run_dir), "--format", "collapsed", "-o", "-", cwd=cwd)
        assert "thread MainThread;<module>" in answer.stdout and "waits_for_the_others" in answer.stdout, (
            answer.stderr
        )
        assert sorted(path.name for path in cwd.iterdir()) == ["flame-rank0.svg"]
