"""Starting the bundled job from a test and following what it prints."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.sources.stacks import pyspy
from tests.leftovers import end_all

ROOT = Path(__file__).parents[2]
_JOB = "STARTED_AS_JOB"  # the variable that all processes of one job inherit
RANK_0_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


class Job:
    """A started job; its two streams come as one, in the order in which they were written."""

    def __init__(self, words: list[str], environment: dict[str, str], folder: Path) -> None:
        self.folder, self.faults = folder, folder / "faults"
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("DIAG_", "TORCHELASTIC_", "PYTHONPATH"))
        }
        # Not below tmp_path: the UNIX sockets that torch and multiprocessing make in it have 107 characters
        # for their path.
        self._temporary, self._mark = Path(tempfile.mkdtemp(prefix="job-")), uuid.uuid4().hex
        given = {"DIAG_FAULT_DIR": str(self.faults), "OMP_NUM_THREADS": "1", "TMPDIR": str(self._temporary)}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", *words],
            env={**clean, **given, **environment, _JOB: self._mark},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.output = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, text: str) -> str:
        """The line with `text`, as soon as it is printed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return line
        raise AssertionError(f"ended with {self.process.wait()} before printing {text!r}:\n{self.output}")

    def struck(self) -> str:
        """The announcement of the fault."""
        return self.until("[diag.fault]")

    def release(self) -> None:
        words = [sys.executable, "-m", "diag_job.faults", "--release", str(self.faults)]
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def end(self) -> int:
        """The exit status, once all has been printed."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait()

    def stack(self) -> str:
        words = [pyspy.find_executable() or "py-spy", "dump", "--nonblocking", "--pid", str(self.pid)]
        try:
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"py-spy cannot look: {error}")

    def stop(self) -> None:
        """End the job with all that it started: ranks are sessions of their own, out of a group's reach."""
        end_all(_JOB, self._mark)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(*words, **environment): a Python module as a job, ended with the test."""
    jobs: list[Job] = []

    def start_job(*words: str, **environment: str) -> Job:
        jobs.append(Job(list(words), environment, tmp_path))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.stop()


@pytest.fixture
def job(start: Start) -> Start:
    """job(*flags): the small job under torchrun, two ranks."""
    need("torch", "megatron.core")
    return lambda *flags: start("diag_job", *flags)


@pytest.fixture
def rank(start: Start, tmp_path: Path) -> Start:
    """rank(fault, *flags): one rank of it without a launcher, in half the time; it is the test's own child."""
    need("torch", "megatron.core")

    def start_rank(fault: str, *flags: str) -> Job:
        words = (
            "diag_job",
            "--nproc",
            "1",
            "--ep",
            "1",
            "--iters",
            "3",
            "--output-dir",
            str(tmp_path / "out"),
        )
        port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        return start(*words, *flags, DIAG_FAULT=fault, **RANK_0_ALONE, **port)

    return start_rank


def need(*modules: str) -> None:
    for name in modules:
        try:
            missing = importlib.util.find_spec(name) is None
        except ImportError:
            missing = True
        if missing:
            pytest.skip(f"{name} is not installed: pip install -r requirements/job.txt")
