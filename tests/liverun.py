"""A real `diag run` around a real job, for tests: started, watched through its files, ended for good."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.leftovers import end_all

JOB = [sys.executable, "-m", "diag_job"]
DIAG = [sys.executable, "-m", "diag"]
# [diag.fault] rank 1: data-hang at step 3 (pid 19090) at=1795225902.467 fifo=/tmp/...
_RUN = "STARTED_BY_RUN"  # the variable that all processes of one run inherit
_FAULT = re.compile(r"\[diag\.fault\] rank (\d+): ([\w-]+) .*?at=([\d.]+)")


class WatchedRun:
    """A `diag run` seen through its terminal and its run directory below `root`; `until` waits for a
    condition."""

    process: psutil.Popen | subprocess.Popen[bytes]

    def __init__(self, root: Path, out: Path) -> None:
        self.root = root
        self.out = out

    @property
    def text(self) -> str:
        return self.out.read_bytes().decode("utf-8", "replace")

    @property
    def run_dir(self) -> Path | None:
        return next(iter(sorted(self.root.glob("*/run.json"))), Path()).parent if self.root.exists() else None

    def run_json(self) -> dict[str, Any]:
        self.until(lambda: self.run_dir is not None and (self.run_dir / "run.json").exists(), 60)
        assert self.run_dir is not None
        data: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())
        return data

    def changes(self) -> list[dict[str, Any]]:
        lines = []
        for path in self.root.glob("*/findings.jsonl"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        return lines

    def opened(self, *ids: str) -> dict[str, Any] | None:
        """The newest change that opened or updated one of these findings."""
        found = [c for c in self.changes() if c["finding"]["id"] in ids and c["change"] != "resolved"]
        return found[-1] if found else None

    def hang(self) -> dict[str, Any] | None:
        """Who holds the job up, whether it is known to be for good or not."""
        return self.opened("hang", "held-up")

    def struck_at(self) -> float | None:
        """When the fault announced itself."""
        match = _FAULT.search(self.text)
        return float(match[3]) if match else None

    def until(self, condition: Callable[[], Any], seconds: float) -> Any:
        """Wait for a condition while the run lives; AssertionError with the terminal's end when it does not
        come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            if self.process.poll() is not None:
                value = condition()
                if value:
                    return value
                break
            time.sleep(0.1)
        raise AssertionError(
            f"not within {seconds:g} s (exit {self.process.poll()}); terminal ends:\n{self.text[-4000:]}"
        )

    def wait(self, seconds: float) -> int:
        return int(self.process.wait(seconds))


class LiveRun(WatchedRun):
    """`diag run` in a process group of its own, with a temporary directory of its own for all that the job
    leaves in one."""

    def __init__(
        self, tmp_path: Path, command: Sequence[str], *options: str, env: dict[str, str] | None = None
    ) -> None:
        super().__init__(tmp_path / "runs", tmp_path / "terminal.txt")
        self._file = open(self.out, "wb")  # noqa: SIM115 - closed by end()
        # Not below tmp_path: the UNIX sockets that torch and multiprocessing make in it have 107 characters
        # for their path.
        self._temporary, self._mark = Path(tempfile.mkdtemp(prefix="run-")), uuid.uuid4().hex
        given = {"OMP_NUM_THREADS": "1", "DIAG_FAULT_DIR": str(tmp_path), "TMPDIR": str(self._temporary)}
        environment = {**os.environ, **given, **(env or {}), _RUN: self._mark}
        argv = [*DIAG, "run", "--port", "0", "--run-root", str(self.root), *options, "--", *command]
        self.process = psutil.Popen(
            argv, stdout=self._file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [*self.process.children(recursive=True)]
        return []

    def end(self) -> None:
        """Everything this run started is gone after this: stopped and hung processes, and those that lost
        their parents."""
        victims = self.tree()
        for process in [*victims, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(victims, timeout=10)
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            self.process.wait(10)
        self._file.close()
        end_all(_RUN, self._mark)
        shutil.rmtree(self._temporary, ignore_errors=True)


@contextlib.contextmanager
def live_run(
    tmp_path: Path, command: Sequence[str], *options: str, env: dict[str, str] | None = None
) -> Iterator[LiveRun]:
    run = LiveRun(tmp_path, command, *options, env=env)
    try:
        yield run
    finally:
        run.end()
