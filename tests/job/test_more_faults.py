"""What the faults of the gauntlet do, on one rank of the small job. Those that need others are run by the
gauntlet itself."""

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from .conftest import Start

pytestmark = pytest.mark.matrix  # what they do to a job; `make matrix` lets diag look at it


def child_of(line: str, key: str) -> psutil.Process:
    match = re.search(rf"{key}[= ](\d+)", line)
    assert match is not None, line
    return psutil.Process(int(match[1]))


def test_data_lock_leaves_the_rank_waiting_for_its_worker(rank: Start) -> None:
    run = rank("data-lock:rank=0")

    worker = child_of(run.struck(), "pid")

    assert worker.pid != run.pid
    # the worker announces it before the rank asks; the test's timeout ends this
    while "_try_get_data" not in run.stack():
        assert run.process.poll() is None


def test_data_worker_stopped(rank: Start) -> None:
    run = rank("data-worker-stopped:rank=0")

    worker = child_of(run.struck(), "pid")

    while worker.status() != psutil.STATUS_STOPPED:
        os.sched_yield()
    worker.send_signal(signal.SIGCONT)
    assert run.end() == 0, run.output


@pytest.mark.parametrize(
    ("fault", "stands"),
    [
        ("stale-baton", "wait (torch/utils/file_baton.py"),
        ("file-lock", "acquire (filelock/"),
        ("fork-lock", "_fork_lock"),
        ("dead-producer", "get (queue.py"),
        ("compile-wait", "get_compiler_abi_compatibility_and_version (torch/utils/cpp_extension.py"),
        ("service-wait", "getresponse (http/client.py"),
        ("pipe-full", "_pipe_full"),
        ("eval-hang", "_compute_metrics"),
        ("optimizer-hang", "step (diag_job/faults/in_phases.py"),
        ("absent", "initialize_model_parallel (diag_job/faults/in_phases.py"),
    ],
)
def test_the_rank_stands_where_its_fault_put_it(rank: Start, fault: str, stands: str) -> None:
    run = rank(f"{fault}:rank=0")

    run.struck()

    # announced a moment before it waits; the test's timeout ends this
    while stands not in (stack := run.stack()):
        assert run.process.poll() is None, run.output + stack


def test_stale_baton_goes_on_once_its_file_is_gone(rank: Start) -> None:
    run = rank("stale-baton:rank=0")

    file = re.search(r"file=(\S+)", run.struck())

    assert file is not None
    Path(file[1]).unlink()
    assert run.end() == 0, run.output


def test_left_early_is_a_clean_exit(rank: Start) -> None:
    run = rank("left-early:rank=0,step=1")

    run.struck()

    assert run.end() == 0, run.output
    assert "'iteration': '2/3'" not in run.output


@pytest.mark.parametrize(
    "fault", ["slow-step:rank=0,factor=3", "long-eval:rank=0,factor=3", "cpu-optimizer:rank=0,seconds=1"]
)
def test_benign_work_ends_in_all_steps(rank: Start, fault: str) -> None:
    run = rank(fault)

    run.struck()

    assert run.end() == 0, run.output
    assert "'iteration': '3/3'" in run.output
