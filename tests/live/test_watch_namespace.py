"""`diag watch` without a pid in a process namespace of its own, beside a job that it did not start, as in a
pod."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

# Process 1, as a pod's pause: starts the two "containers" side by side, and reaps.
_PAUSE = """
import json, os, signal, subprocess, sys
words = json.loads(sys.argv[1])
for name in ("job", "diag"):
    with open(f"{sys.argv[2]}/{name}.out", "wb") as out, open(f"{sys.argv[2]}/{name}.err", "wb") as err:
        pid = subprocess.Popen(words[name], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True).pid
    print(name, pid, flush=True)
while True:
    try:
        pid, status = os.wait()
    except ChildProcessError:
        break
    print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)
"""
# A launcher of two ranks. They end when the file is there.
_JOB = """
import os, subprocess, sys, time
from pathlib import Path
def until_told():
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
if "RANK" in os.environ:
    until_told()
else:
    where = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}
    ranks = []
    for rank in ("0", "1"):
        env = {**os.environ, **where, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
    sys.exit(max(rank.wait() for rank in ranks))
"""


def unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"no process namespace can be made here: {error}")
    if done.returncode != 0:
        pytest.skip(f"no process namespace can be made here: {done.stderr.strip()}")
    return words


class Beside:
    def __init__(self, folder: Path, *options: str, job: bool = True) -> None:
        self.folder, self.go = folder, folder / "go"
        (folder / "job.py").write_text(_JOB)
        words = {
            "job": [sys.executable, str(folder / "job.py"), str(self.go)] if job else ["sleep", "1000"],
            "diag": [
                sys.executable,
                "-m",
                "diag",
                "watch",
                "--json",
                "--port",
                "0",
                "--run-root",
                f"{folder}/runs",
                *options,
            ],
        }
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
        with open(folder / "pause", "wb") as out:
            self.process = subprocess.Popen(
                [*unshare(), sys.executable, "-c", _PAUSE, json.dumps(words), str(folder)],
                stdout=out,
                env=clean,
                start_new_session=True,
            )

    def said(self, who: str = "diag.err") -> str:
        with contextlib.suppress(OSError):
            return (self.folder / who).read_text()
        return ""

    def ended(self, name: str) -> int | None:
        told = self.said("pause")
        pid = re.search(rf"^{name} (\d+)$", told, re.MULTILINE)
        code = re.search(rf"^ended {pid[1]} (-?\d+)$", told, re.MULTILINE) if pid else None
        return int(code[1]) if code else None

    def until(self, condition: Callable[[], Any], seconds: float = 40.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value or (value == 0 and value is not False):
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds:g} s: {self.said()[-3000:]}")

    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.said("diag.out"))
        return document


@contextlib.contextmanager
def beside(folder: Path, *options: str, job: bool = True) -> Iterator[Beside]:
    started = Beside(folder, *options, job=job)
    try:
        yield started
    finally:
        started.process.kill()  # --kill-child: process 1 goes with it, and with that all of its namespace
        started.process.wait()


def test_job_beside_us_is_found_watched_and_the_watch_ends_with_it(tmp_path: Path) -> None:
    with beside(tmp_path) as pod:
        # given a job that was found, both ranks of it
        pod.until(lambda: re.search(r"diag: found the job: pid \d+ \(.*job\.py", pod.said()))
        run = pod.until(lambda: next(iter((tmp_path / "runs").glob("*/sidecars.log")), None)).parent
        pod.until(lambda: _ranks_in(run) == {0, 1})

        # when it ends
        pod.go.touch()

        # then the watch ends by itself, clear, and the run directory is closed
        assert pod.until(lambda: pod.ended("job")) == 0
        assert pod.until(lambda: pod.ended("diag")) == 0
        assert pod.report()["job"]["ranks_seen"] == 2
        assert json.loads((run / "run.json").read_text())["ended"] is True


def test_rank_that_was_killed_is_named_and_exit_zero_keeps_the_code(tmp_path: Path) -> None:
    with beside(tmp_path, "--exit-zero") as pod:
        pod.until(lambda: "found the job" in pod.said())
        run = pod.until(lambda: next(iter((tmp_path / "runs").glob("*/sidecars.log")), None)).parent
        pod.until(lambda: _ranks_in(run) == {0, 1})

        os.kill(_outer_pid(tmp_path / "job.py", "RANK=1"), signal.SIGKILL)
        pod.go.touch()

        assert pod.until(lambda: pod.ended("diag")) == 0
        died = [finding for finding in pod.report()["findings"] if finding["id"] == "rank-died"]
        assert [one["ranks"] for one in died] == [[1]]


def test_watch_that_is_told_to_end_before_any_job_came_says_what_it_saw(tmp_path: Path) -> None:
    with beside(tmp_path, job=False) as pod:
        pod.until(lambda: "diag: no rank yet; 1 process seen, all readable" in pod.said())

        os.kill(_outer_pid(tmp_path / "runs", ""), signal.SIGTERM)

        assert pod.until(lambda: pod.ended("diag")) == 0
        said = {item["what"]: item["reason"] for item in pod.report()["not_checked"]}
        assert said["ranks"] == "no job was seen: no rank yet; 1 process seen, all readable"


def _ranks_in(run: Path) -> set[int]:
    """Whose stacks were read."""
    ranks = set()
    for path in run.glob("journal-*.jsonl.gz"):
        with contextlib.suppress(EOFError, OSError), gzip.open(path, "rt") as lines:
            for record in map(json.loads, lines):
                if record.get("source") in ("remote_stack", "pyspy", "faulthandler", "exits"):
                    ranks.add(record["rank"])
    return ranks


def _outer_pid(words: Path, variable: str) -> int:
    """The process as we see it from outside of its namespace: the topmost with this in its command line and
    this variable."""
    for entry in sorted(
        (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()),
        key=lambda entry: int(entry.name),
    ):
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            mine = any(str(words).encode() in word for word in argv) and b"-c" not in argv
            if (
                mine
                and argv[0] != b"unshare"
                and variable.encode() in [b"", *(entry / "environ").read_bytes().split(b"\0")]
            ):
                return int(entry.name)
    raise AssertionError(f"no process of {words}")
