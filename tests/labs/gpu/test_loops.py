"""The plain loops without GPUs: they train however their steps end, and what strikes them is what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.labs.bench import gpu_loop, target
from tests.labs.gpu import loops
from tests.labs.gpu.loop_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_a_loop_that_there_is(case: Case) -> None:
    given = gpu_loop.parser().parse_args(case.arguments)

    assert given.rank == 1 and case.rank in (None, 1)
    assert case.outside in loops._OUTSIDE


def test_names_are_unique_for_they_name_folders() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("end", gpu_loop.ENDS)
def test_steps_end_as_they_are_told_to(end: str, tmp_path: Path) -> None:
    env = {**os.environ, "BENCH_FOLDER": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = ["--iters", "3", "--step-seconds", "0.001", "--workers", "0", "--ends", end, "--lines", "own"]

    ran = subprocess.run(
        gpu_loop.command(1, *words), check=False, env=env, capture_output=True, text=True, timeout=120
    )

    assert ran.returncode == 0, ran.stderr
    assert "step 1/3 loss: 1.0000" in ran.stdout
    assert len(target.read_steps(tmp_path)) == 2


def test_a_starved_rank_shares_its_only_core_with_processes_that_are_not_the_jobs(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as rank:
        (tmp_path / "pid-1").write_text(str(rank.pid))
        try:
            with loops._starve(tmp_path):
                cores = os.sched_getaffinity(rank.pid)
                beside = [
                    process
                    for process in psutil.Process().children()
                    if process.pid != rank.pid and os.sched_getaffinity(process.pid) == cores
                ]
                assert len(cores) == 1 and len(beside) == 6
                assert all(os.getsid(process.pid) == process.pid for process in beside)
            assert not any(process.is_running() for process in beside)
        finally:
            rank.kill()


def test_what_was_recorded_is_kept_but_for_sockets(tmp_path: Path) -> None:
    run = tmp_path / "gl" / "runs" / "a"
    run.mkdir(parents=True)
    (run / "journal-000001.jsonl.gz").write_bytes(b"journal")
    os.mkfifo(run / "pipe")
    (tmp_path / "gl" / "terminal.txt").write_text("what was said\n")

    loops._keep(tmp_path / "gl", tmp_path / "kept")

    kept = {
        str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*") if path.is_file()
    }
    assert kept == {"terminal.txt", "runs/a/journal-000001.jsonl.gz"}


def test_an_unknown_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert loops.main(["--cases", "late-itme"]) == 2
    assert "no case late-itme" in capsys.readouterr().err
