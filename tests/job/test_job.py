"""`python -m diag_job` as it is started by people: torchrun and two ranks."""

import ast
import json
import re
from pathlib import Path

import pytest

from .conftest import Start


def test_a_healthy_run_ends_with_0_and_prints_the_lines_of_ms_swift(job: Start, tmp_path: Path) -> None:
    run = job("--iters", "3", "--save-steps", "2", "--output-dir", str(tmp_path / "out"))

    assert run.end() == 0, run.output

    rows = [ast.literal_eval(line) for line in run.output.splitlines() if line.startswith("{")]
    assert [row["iteration"] for row in rows] == ["1/3", "2/3", "3/3"]
    assert rows[0]["loss"] == pytest.approx(0.693147, abs=1e-6)  # policy and reference are the same yet
    assert rows[2]["loss"] != rows[0]["loss"]
    assert run.output.count("[INFO:swift] The training of Epoch 0 starts...\n") == 1
    folder = tmp_path / "out" / "checkpoint-2"
    assert f"[INFO:swift] Successfully saved Megatron model weights in `{folder}`.\n" in run.output
    assert (folder / "iter_0000002" / ".metadata").exists()
    assert [
        json.loads(line) for line in (tmp_path / "out" / "logging.jsonl").read_text().splitlines()
    ] == rows


def test_data_hang_stops_everyone_until_its_fifo_is_written(job: Start) -> None:
    run = job("--iters", "2", "--fault", "data-hang")

    line = run.struck()
    run.release()

    assert re.search(r"^\[diag\.fault\] rank 1: data-hang at step 0 \(pid \d+\) at=\d+\.\d{3} fifo=/", line)
    assert "'iteration': '1/2'" not in run.output
    assert run.end() == 0, run.output
    assert "'iteration': '2/2'" in run.output


def test_a_killed_rank_takes_the_job_with_it_and_is_the_root_cause(job: Start) -> None:
    run = job("--fault", "rank-killed:step=1")

    run.struck()

    assert run.end() == 1
    root_cause = run.output[run.output.index("Root Cause") :]
    assert re.search(r"rank +: 1 ", root_cause)
    assert re.search(r"exitcode +: -9 ", root_cause)


def test_an_impossible_layout_is_refused_before_anything_starts(job: Start) -> None:
    run = job("--nproc", "3", "--tp", "2")

    assert run.end() == 2
    assert "does not divide" in run.output


def test_a_fault_for_a_rank_that_is_not_there_is_refused(job: Start) -> None:
    run = job("--fault", "sigstop:rank=2")

    assert run.end() == 2
    assert "there is no rank 2" in run.output
