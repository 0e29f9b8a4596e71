"""py-spy: real processes, real refusals; the target is never stopped and the deadline is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Observation, SourceFailed, SourceWorks, StackSample, Unparsed
from diag.sources.stacks import pyspy
from tests.inject.targets import HOLD_GIL, WAIT, Target, other_pythons, plain_env

FOLDER = Path(__file__).parents[1] / "captures" / "sources"
needs_pyspy = pytest.mark.skipif(pyspy.find_executable() is None, reason="py-spy is not installed")


def parsed(payload: Any) -> list[Observation]:
    return list(pyspy.parse(Record(pyspy.SOURCE, payload, rank=0, at=5.0)))


def sample(payload: Any) -> StackSample:
    assert "stdout" in payload, payload
    works, found = parsed(payload)
    assert isinstance(works, SourceWorks) and isinstance(found, StackSample)
    return found


def functions(found: StackSample) -> list[str]:
    assert found.main is not None
    return [frame.function for frame in found.main.frames]


@needs_pyspy
@pytest.mark.parametrize("python", [sys.executable, *other_pythons()], ids=lambda path: Path(path).name)
def test_rank_that_holds_the_gil_in_c_is_read(python: str) -> None:
    with Target(HOLD_GIL, plain_env(), python=python) as rank:
        found = sample(pyspy.PySpy().dump(rank.pid, 5.0, parent_pid=1))
        assert functions(found) == ["<module>", "hold_gil"]
        assert (found.pid, found.parent_pid, found.how, found.emitted) == (rank.pid, 1, "pyspy", 5.0)
        assert found.main is not None and found.main.thread_id == rank.pid


@needs_pyspy
def test_stopped_process_is_read_and_stays_stopped() -> None:
    with Target(WAIT, plain_env()) as rank:
        os.kill(rank.pid, signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert functions(sample(pyspy.PySpy().dump(rank.pid, 5.0))) == ["<module>", "wait_here"]
        assert Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@needs_pyspy
def test_torn_samples_of_a_busy_loop_are_rare_after_one_retry() -> None:
    # given a loop that changes its frames all the time; bare nonblocking py-spy gives 2 to 3 % wrong
    # (performance measurements)
    code = "print('ready', flush=True)\ndef a(): return b()\ndef b(): return c()\ndef c(): return 1\nwhile True: a()"
    known = (["<module>"], ["<module>", "a"], ["<module>", "a", "b"], ["<module>", "a", "b", "c"])
    with Target(code, plain_env()) as rank:
        # when it is read 40 times
        payloads = [pyspy.PySpy().dump(rank.pid, 5.0) for _ in range(40)]
        # then
        wrong = [
            payload for payload in payloads if "failed" in payload or functions(sample(payload)) not in known
        ]
        assert len(wrong) <= 2, wrong


@needs_pyspy
def test_what_is_no_python_or_has_ended_is_told_apart() -> None:
    spy = pyspy.PySpy()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        # given a process without Python, then a zombie, then nothing
        sleep = spy.dump(sleeper.pid, 5.0)
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        zombie = spy.dump(sleeper.pid, 5.0)
    nothing = spy.dump(sleeper.pid, 5.0)
    # then
    assert [payload["failed"] for payload in (sleep, zombie, nothing)] == ["not_python", "gone", "gone"]
    assert parsed(zombie) == []
    [failed] = parsed(sleep)
    assert isinstance(failed, SourceFailed) and "no Python" in failed.reason
    # and a compiler among a rank's children takes nothing from the rank
    assert parsed(sleep | {"parent_pid": 1}) == []


@needs_pyspy
def test_probe_says_that_it_works_or_why_not() -> None:
    with Target(WAIT, plain_env()) as rank:
        assert pyspy.PySpy().can_read(rank.pid, 5.0) is None
        blind = pyspy.PySpy("/no/such/py-spy").can_read(rank.pid, 5.0)
        assert (
            blind is not None
            and "/no/such/py-spy: No such file" in blind.reason
            and "pip install" in blind.remedy
        )


def stand_in(folder: Path, script: str) -> pyspy.PySpy:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\necho run >> {folder}/runs\n{script}\n")
    path.chmod(0o755)
    return pyspy.PySpy(str(path))


def test_py_spy_that_hangs_is_killed_at_the_deadline(tmp_path: Path) -> None:
    # given
    spy = stand_in(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    # when
    began = time.monotonic()
    payload = spy.dump(os.getpid(), 0.5)
    # then it is told, and nothing of it is left
    assert time.monotonic() - began < 5.0
    assert payload["failed"] == "timed_out"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize(
    "script", ["echo '{torn'", "echo '[1]'", "echo '[]'", "echo Error: failed to copy frame >&2; exit 1"]
)
def test_garbage_is_read_once_more_and_not_for_ever(tmp_path: Path, script: str) -> None:
    payload = stand_in(tmp_path, script).dump(os.getpid(), 5.0)
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
    assert payload.get("failed") == ("failed" if "[]" not in script else None)


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({"uid": 5, "our_uid": 0, "ptrace_scope": 1}, "belongs to uid 5"),
        ({"uid": 5, "our_uid": 5, "dumpable": False}, "undumpable"),
        ({"uid": 5, "our_uid": 5, "ptrace_scope": 1}, "ptrace_scope is 1: start the job with `diag run`"),
        ({"uid": 5, "our_uid": 5, "ptrace_scope": 2}, "ptrace_scope is 2"),
        ({"uid": 5, "our_uid": 5, "ptrace_scope": 3}, "ptrace_scope is 3"),
        ({"uid": 5, "our_uid": 5}, "give diag the capability"),
    ],
)
def test_remedy_fits_the_refusal(access: dict[str, Any], words: str) -> None:
    [failed] = parsed(
        {"pid": 7, "failed": "denied", "stderr": "Permission Denied: Try running again", "access": access}
    )
    assert isinstance(failed, SourceFailed)
    assert failed.reason == "cannot read stacks of pid 7: ptrace is not permitted"
    assert words in failed.remedy


# --- reading
# ---------------------------------------------------------------------------------------------------


def test_capture_of_a_rank_is_read_outermost_first() -> None:
    # given py-spy's own JSON of a rank that waits for its first batch: H200 host, torch 2.15, 2026-11-21
    threads = json.loads((FOLDER / "pyspy_rank0.json").read_text())
    # when
    found = sample({"pid": 751, "stdout": threads})
    # then C threads without frames are left out
    assert [thread.name for thread in found.threads] == [
        "QueueFeederThread",
        "QueueFeederThread",
        "MainThread",
    ]
    assert found.main is not None and found.main.thread_id == 751
    assert functions(found)[0] == "<module>"
    # and trimming loses nothing that is used
    assert sample({"pid": 751, "stdout": pyspy._trim(threads)}) == found


def test_capture_of_a_data_loader_worker_names_its_loop() -> None:
    threads = json.loads((FOLDER / "pyspy_worker.json").read_text())
    found = sample({"pid": 846, "parent_pid": 751, "stdout": threads})
    assert "_worker_loop" in functions(found)
    assert found.parent_pid == 751


KEYS = st.sampled_from(
    [
        "pid",
        "stdout",
        "failed",
        "frames",
        "name",
        "filename",
        "line",
        "os_thread_id",
        "thread_name",
        "stderr",
        "access",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(
    JSON
    | st.builds(lambda inner: {"pid": 1, "stdout": [inner]}, JSON)
    | st.builds(lambda inner: {"pid": 1, "failed": inner}, JSON)
)
def test_garbage_is_unparsed_and_never_raises(payload: Any) -> None:
    assert all(isinstance(fact, Observation) for fact in parsed(payload))


def test_payload_of_another_shape_is_unparsed() -> None:
    [fact] = parsed({"pid": "x"})
    assert isinstance(fact, Unparsed)
