"""`diag dump` of jobs that diag did not start, in a process namespace of their own: one job, two, none, another user's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_watch_namespace import unshare
from tests.otheruser import NOBODY

pytestmark = pytest.mark.live

_RANKS = str(Path(__file__).with_name("ranks.py"))
# Starts jobs, waits until all their ranks stand, and runs diag beside them; {0}, {1} in its words are pids of launchers.
_BESIDE = """
import json, os, subprocess, sys
task = json.loads(sys.argv[1])
jobs = []
for number, modes in enumerate(task["jobs"]):
    fifo = f"{task['folder']}/ready{number}"
    os.mkfifo(fifo)
    env = {**os.environ, "READY": fifo, "MASTER_ADDR": "localhost", "MASTER_PORT": str(29500 + number)}
    jobs.append(subprocess.Popen([sys.executable, task["ranks"], *modes], env=env, stdout=subprocess.DEVNULL, start_new_session=True))
    standing = 0
    while standing < sum(mode != "work" for mode in modes):
        standing += open(fifo).read().count("\\n")  # one read may have both
pids = [job.pid for job in jobs]
words = [word.format(*pids) for word in task["words"]]
other = ["-c", task["other"]] if task["other"] else ["-m", "diag"]
done = subprocess.run([sys.executable, *other, "dump", *words], capture_output=True, text=True)
alive = [job.poll() is None for job in jobs]
print(json.dumps({"pids": pids, "rc": done.returncode, "out": done.stdout, "err": done.stderr, "alive": alive}))
"""
# As another user, who need not be able to read this Python: all that is imported was before.
_AS_NOBODY = f"""
import os, sys
from diag.cli.main import main
main(["dump", "--pid", "4000000"])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(main(sys.argv[1:]))
"""


def dump(folder: Path, jobs: list[list[str]], *words: str, other: str = "") -> dict[str, Any]:
    task = {"folder": str(folder), "ranks": _RANKS, "jobs": jobs, "words": words, "other": other}
    done = subprocess.run(
        [*unshare(), sys.executable, "-c", _BESIDE, json.dumps(task)],
        env={**os.environ, "DIAG_RUN_ROOT": str(folder / "runs"), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_job_that_stands_is_named_looked_at_twice_and_dumped_without_a_pid(tmp_path: Path) -> None:
    said = dump(tmp_path, [["stop", "wait"]], "--json", "-o", str(tmp_path / "bundle.tar.gz"))

    # it says whom it takes, and why that one
    assert f"one job runs here: pid {said['pids'][0]} (" in said["err"] and "ranks 0-1" in said["err"]
    # the verdict, and exit code 10
    report = json.loads(said["out"])
    assert [(one["id"], one["class"], one["ranks"]) for one in report["findings"]] == [
        ("hang", "stopped", [0])
    ]
    assert (said["rc"], report["schema"], report["dump"]["schema"]) == (10, "diag.report/1", "diag.dump/1")
    assert 0 < report["dump"]["looked_seconds"] <= 41
    # the job goes on, and the bundle tells the same elsewhere
    assert said["alive"] == [True]
    again = subprocess.run(
        [sys.executable, "-m", "diag", "replay", "--json", str(tmp_path / "bundle.tar.gz")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 10
    assert [one["class"] for one in json.loads(again.stdout)["findings"]] == ["stopped"]


def test_short_look_at_one_of_two_jobs_claims_nothing(tmp_path: Path) -> None:
    """A look that ends before anything is proven says so, and is not clear."""
    said = dump(tmp_path, [["wait", "wait"], ["wait"]], "--json", "--seconds", "6.5", "--pid", "{0}")

    report = json.loads(said["out"])
    assert (said["rc"], report["job"]["ranks_seen"], report["findings"]) == (0, 2, [])
    open_ = {one["what"]: one for one in report["not_checked"]}["whether the job is stuck"]
    assert re.match(r"no progress was seen for|the look ended after", open_["reason"])
    assert open_["remedy"] == f"look for longer: diag watch --pid {said['pids'][0]}"


def test_job_that_works_is_clear_and_nothing_is_left_open(tmp_path: Path) -> None:
    said = dump(tmp_path, [["work", "work"]], "--json", "--pid", "{0}")

    report = json.loads(said["out"])
    assert (said["rc"], report["findings"]) == (0, [])
    assert "whether the job is stuck" not in [one["what"] for one in report["not_checked"]]
    assert report["dump"]["looked_seconds"] < 39


@pytest.mark.parametrize("words", [[], ["--pid", "{0}", "{1}"], ["--pid", "{0},{1}"]], ids=str)
def test_of_two_jobs_none_is_taken_and_the_command_for_each_is_told(tmp_path: Path, words: list[str]) -> None:
    said = dump(tmp_path, [["wait"], ["wait"]], "--json", *words)

    assert said["rc"] == 2 and "2 jobs" in said["err"].splitlines()[0]
    commands = [f"diag dump --pid {pid}" for pid in said["pids"]]
    assert all(f"\n  {command}   # rank 0, for " in said["err"] for command in commands)
    document = json.loads(said["out"])
    assert document["schema"] == "diag.jobs/1"
    assert [(job["pid"], job["ranks"], job["command"]) for job in document["jobs"]] == [
        (pid, [0], command) for pid, command in zip(said["pids"], commands, strict=True)
    ]
    assert not (tmp_path / "runs").exists()


def test_without_a_job_it_says_that_none_was_found(tmp_path: Path) -> None:
    said = dump(tmp_path, [])

    assert (said["rc"], said["out"]) == (1, "")
    assert said["err"].startswith(
        "error: this user has no live run of diag on this machine, and no process that trains"
    )
    assert "diag dump --pid PID" in said["err"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_job_of_another_user_is_refused_with_the_line_that_may(tmp_path: Path) -> None:
    said = dump(tmp_path, [["wait"]], "--pid", "{0}", other=_AS_NOBODY)

    assert said["rc"] == 2
    assert f"pid {said['pids'][0]} is a process of root, and may not be read" in said["err"]
    assert f'sudo "$(command -v diag)" dump --pid {said["pids"][0]}' in said["err"]


def test_pid_of_nobody_is_a_wrong_use(tmp_path: Path) -> None:
    said = dump(tmp_path, [], "--pid", "4000000")

    assert said["rc"] == 2 and said["err"].startswith("error: no process has pid 4000000")


def test_single_process_that_a_person_points_at_is_judged_though_nothing_says_that_it_trains(
    tmp_path: Path,
) -> None:
    """Without a rank, a log or a phase: without being pointed at it may be a server that waits by intent."""
    script = tmp_path / "train.py"
    script.write_text(
        "import threading\n\n\ndef next_batch():\n    lock = threading.Lock()\n    lock.acquire()\n"
        "    print('ready', flush=True)\n    lock.acquire()\n\n\nnext_batch()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        done = subprocess.run(
            [sys.executable, "-m", "diag", "dump", "--json", "--seconds", "70", "--pid", str(job.pid)],
            env={**os.environ, "DIAG_RUN_ROOT": str(tmp_path / "runs")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        job.kill()

    report = json.loads(done.stdout)
    found = [(one["id"], one["severity"], one["ranks"]) for one in report["findings"]]
    assert (done.returncode, found) == (10, [("hang", "critical", [0])]), done.stderr
    assert re.search(r"next_batch \(\S*train\.py:8\)", report["findings"][0]["summary"])
