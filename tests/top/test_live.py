"""`diag top` beside a real run, in a real terminal (tmux)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from diag.cli.client.http import get
from tests.liverun import DIAG, LiveRun, live_run
from tests.top.tmux import needs_tmux, tmux_pane

pytestmark = pytest.mark.live
RANKS = [sys.executable, str(Path(__file__).parents[1] / "live" / "ranks.py")]


@pytest.fixture(scope="module")
def dead_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """Three ranks: 0 and 2 wait for good, 1 was killed."""
    with live_run(tmp_path_factory.mktemp("top"), [*RANKS, "wait", "wait", "wait"]) as run:
        kill_rank_1(run, 3)
        yield run


def kill_rank_1(run: LiveRun, of: int) -> None:
    """Once diag knows all ranks; until it says that this one died."""
    url = run.until(lambda: run.run_json().get("url"), 60)
    rows = run.until(lambda: (rows := ranks(url)) and len(rows) == of and rows, 60)
    os.kill(rows[1]["pid"], signal.SIGKILL)
    run.until(lambda: run.opened("rank-died"), 60)


def ranks(url: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(get(f"{url}/ranks", {}, 15)[2])["ranks"]
    return rows


def top(run: LiveRun, *words: str) -> list[str]:
    return [*DIAG, "top", "--run-dir", str(run.run_dir), *words]


@needs_tmux
def test_culprit_is_on_a_screen_of_80_columns_and_keys_lead_to_the_rest(
    dead_rank: LiveRun, tmp_path: Path
) -> None:
    with tmux_pane(tmp_path, top(dead_rank)) as pane:
        first = pane.until(lambda text: "CRITICAL rank-died" in text and "LIVE" in text)
        assert "rank 1 (pid" in first and "was killed by signal 9" in " ".join(first.split())
        assert re.search(r"^>! +1 dead", first, re.MULTILINE), first
        assert first.rstrip().splitlines()[-1].startswith("q quit Enter details")

        pane.keys("s")
        stacks = pane.until(
            lambda text: (
                "Merged stacks" in text
                and "waits_for_the_others (" in text
                and "tests/live/ranks.py:" in text
            )
        )
        assert "ranks 0, 2: " in stacks and "rank 1: no stack: killed by signal 9" in stacks
        pane.keys("Escape")
        pane.until(lambda text: "Findings: " in text)

        pane.keys("Down", "Enter")
        rank = pane.until(lambda text: "main thread MainThread" in text and "q back" in text)
        assert "rank 0: " in rank and "waits_for_the_others" in rank
        pane.keys("q")

        pane.until(lambda text: "Findings: " in text)
        pane.keys("/", "2", "Enter")
        pane.until(lambda text: "Ranks: 1 of 3" in text)
        pane.keys("e")
        pane.until(lambda text: "diag explain rank-died" in text and "Meaning:" in text)
        pane.keys("d")
        dump = pane.until(lambda text: "bundle: " in text.splitlines()[-1])
        bundle = dump.splitlines()[-1].removeprefix("bundle: ").rstrip(".")
        assert bundle.startswith(str(dead_rank.run_dir)[: len(bundle)])
        pane.keys("q", "q")
        pane.until(lambda _: (tmp_path / "code").exists())
        assert (tmp_path / "code").read_text() == "0\n"
        assert "Findings" not in pane.text()  # the screen before it is back


@needs_tmux
def test_wide_screen_has_details_beside_and_a_resized_one_takes_its_room(
    dead_rank: LiveRun, tmp_path: Path
) -> None:
    env = {"COLUMNS": "80", "LINES": "24"}  # as a shell left them once
    with tmux_pane(tmp_path, top(dead_rank), 200, 50, env) as pane:
        pane.until(lambda text: "Time line" in text and re.search(r"^ Ranks.* Rank 1\b", text, re.MULTILINE))
        pane.keys("Down")
        pane.until(lambda text: "main thread MainThread" in text and "waits_for_the_others" in text)
        pane.resize(80, 24)
        small = pane.until(
            lambda text: "main thread" not in text and "CRITICAL rank-died" in text and "? help" in text
        )
        assert max(map(len, small.splitlines())) <= 80
        pane.resize(40, 10)
        pane.until(lambda text: "q quit Enter details s stacks f findings\n" in text and "rank-died" in text)
        pane.resize(160, 40)
        pane.until(lambda text: "main thread MainThread" in text and "Time line" in text)


@needs_tmux
@pytest.mark.parametrize("no_color", [True, False])
def test_no_color_means_none(dead_rank: LiveRun, tmp_path: Path, no_color: bool) -> None:
    env = {"NO_COLOR": "1"} if no_color else {}
    with tmux_pane(
        tmp_path, ["env", *([] if no_color else ["-u", "NO_COLOR"]), *top(dead_rank)], env=env
    ) as pane:
        pane.until(lambda text: "CRITICAL rank-died" in text)
        colours = re.findall(r"\x1b\[(?:[\d;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|[34]8;[\d;]+)m", pane.painted())
        assert (colours == []) is no_color


def test_without_a_terminal_one_picture_and_the_exit_code_of_a_dump(dead_rank: LiveRun) -> None:
    done = subprocess.run(
        top(dead_rank),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"LANG": "C"},
    )

    assert done.returncode == 10, done.stderr
    assert "CRITICAL rank-died" in done.stdout and "\x1b" not in done.stdout
    assert re.search(r"^ !  +1 dead", done.stdout, re.MULTILINE) and "ranks 0, 2" in done.stdout

    words = [*DIAG, "top", str(dead_rank.run_dir), "--json"]  # a path whose run lives is asked, not read
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    document = json.loads(told.stdout)
    assert (told.returncode, document["schema"], document["head"]["recorded"]) == (10, "diag.state/1", "")


@needs_tmux
def test_dumb_terminal_gets_one_picture(dead_rank: LiveRun, tmp_path: Path) -> None:
    with tmux_pane(tmp_path, top(dead_rank), env={"TERM": "dumb"}) as pane:
        pane.until(lambda _: (tmp_path / "code").exists())
        assert (tmp_path / "code").read_text() == "10\n"
        assert "\x1b" not in pane.painted()


@needs_tmux
def test_end_of_the_run_is_told_and_its_last_picture_stays(tmp_path: Path) -> None:
    with live_run(tmp_path, [*RANKS, "wait", "wait"]) as run:
        kill_rank_1(run, 2)
        with tmux_pane(tmp_path, top(run)) as pane:
            pane.until(lambda text: "CRITICAL rank-died" in text and "LIVE" in text)
            killed(of_job(run.tree()))
            ended = pane.until(lambda text: "ENDED" in text)

            assert "the job ended with exit code" in ended
            assert "CRITICAL rank-died" in ended and re.search(r"^>! +1 dead", ended, re.MULTILINE)
            assert ended.rstrip().splitlines()[-1].startswith(f"next: diag top {run.run_dir}"[:60])


@needs_tmux
def test_killed_diag_is_told_as_lost_with_what_to_do_and_the_job_goes_on(tmp_path: Path) -> None:
    with live_run(tmp_path, [*RANKS, "wait", "wait"]) as run:
        url = run.until(lambda: run.run_json().get("url"), 60)
        run.until(lambda: len(ranks(url)) == 2, 60)
        with tmux_pane(tmp_path, top(run)) as pane:
            pane.until(lambda text: "LIVE" in text and "Ranks: 2" in text)
            family = run.tree()
            run.process.kill()
            lost = pane.until(lambda text: "LOST" in text and "is gone" in text)

            assert "next: diag watch --run-dir" in lost and "Ranks: 2" in lost
            assert len(of_job(family)) == 3  # launcher and ranks
        psutil.wait_procs(killed(family), timeout=10)


def of_job(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that live."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie too
            if "ranks.py" in " ".join(process.cmdline()):
                found.append(process)
    return found


def killed(processes: list[psutil.Process]) -> list[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return processes
