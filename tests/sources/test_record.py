"""Flame graphs of real processes: busy, stopped, ended, not to be read; the target is as it was afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from diag.sources.stacks.flame_recording import Recording, record
from diag.sources.stacks.pyspy import find_executable
from diag.text.errors import DiagError

ROOT = Path(__file__).parents[2]
BUSY = """
import sys
def busy_function():
    print("ready", flush=True)
    while True:
        sum(range(1000))
busy_function()
"""


@pytest.fixture
def busy() -> Iterator[psutil.Popen]:
    process = psutil.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    process.wait()


SHORT = Recording(seconds=1.0, rate=20, form="collapsed")


def test_busy_function_is_what_the_time_goes_to(busy: psutil.Popen) -> None:
    text = record(busy.pid, SHORT).decode()

    assert max(text.splitlines(), key=lambda line: int(line.rpartition(" ")[2])).count("busy_function") == 1
    assert busy.status() == psutil.STATUS_RUNNING


def test_stopped_process_is_drawn_and_stays_stopped(busy: psutil.Popen) -> None:
    busy.send_signal(signal.SIGSTOP)
    os.waitpid(busy.pid, os.WUNTRACED)

    text = record(busy.pid, SHORT).decode()

    assert "busy_function" in text
    assert busy.status() == psutil.STATUS_STOPPED


def test_native_recording_leaves_the_process_running(busy: psutil.Popen) -> None:
    text = record(busy.pid, Recording(1.0, 10, "collapsed", native=True)).decode()

    assert "busy_function" in text
    assert busy.status() in (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=sys.stdout)
def waits_for_its_child():
    child.wait()
waits_for_its_child()
"""


def test_children_are_drawn_when_they_are_asked_for() -> None:
    parent = psutil.Popen([sys.executable, "-c", PARENT, BUSY], stdout=subprocess.PIPE)
    try:
        assert parent.stdout.readline() == b"ready\n"
        alone = record(parent.pid, SHORT).decode()
        family = record(parent.pid, Recording(2.0, 20, "collapsed", children=True)).decode()
    finally:
        for process in [*parent.children(), parent]:
            process.kill()
        parent.wait()

    assert "waits_for_its_child" in alone and "busy_function" not in alone
    assert "waits_for_its_child" in family and "busy_function" in family


def test_process_that_has_ended_is_told_apart_from_one_that_took_its_pid(busy: psutil.Popen) -> None:
    with pytest.raises(DiagError, match="has ended"):
        record(busy.pid, SHORT, start_ticks=1)
    busy.kill()
    busy.wait()
    with pytest.raises(DiagError, match="has ended"):
        record(busy.pid, SHORT)


def test_missing_pyspy_says_how_to_get_it(busy: psutil.Popen) -> None:
    with pytest.raises(DiagError) as error:
        record(busy.pid, SHORT, executable="/no/such/py-spy")

    assert "pip install py-spy" in error.value.hint


def test_process_without_python_is_named_as_such() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(DiagError, match="found no Python"):
            record(process.pid, SHORT)
    finally:
        process.kill()
        process.wait()


def test_recording_ends_with_the_hub(busy: psutil.Popen) -> None:
    began = time.monotonic()

    with pytest.raises(DiagError, match="the run ended"):
        record(busy.pid, Recording(60.0, 20, "collapsed"), ending=lambda: time.monotonic() - began > 1.0)

    assert time.monotonic() - began < 10
    assert not [child for child in psutil.Process().children() if "py-spy" in child.name()]


def test_pyspy_that_hangs_is_ended_and_the_process_goes_on(
    busy: psutil.Popen, tmp_path: Path, monkeypatch
) -> None:
    # given a py-spy that stops its target, as a killed one may leave it, and never ends
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ntrap '' INT\nkill -STOP {busy.pid}\nwhile :; do sleep 1; done\n")
    spy.chmod(0o755)
    monkeypatch.setattr("diag.sources.stacks.flame_recording._GRACE_SECONDS", 1.0)

    with pytest.raises(DiagError, match="not finish in time"):
        record(busy.pid, Recording(1.0, 10, "collapsed", native=True), executable=str(spy))

    assert busy.status() != psutil.STATUS_STOPPED
    assert not [child for child in psutil.Process().children() if "py-spy" in " ".join(child.cmdline())]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_process_that_may_not_be_read_says_what_permission_is_missing(busy: psutil.Popen) -> None:
    # given a target of root, and a recorder that becomes nobody when it has imported what it needs
    script = f"""
import os, sys
from diag.text.errors import DiagError
from diag.sources.stacks.flame_recording import Recording, record
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    record({busy.pid}, Recording(1.0, 20, "collapsed"), executable=sys.argv[1])
except DiagError as error:
    print(error, error.hint, sep="|")
"""
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as folder:  # pytest's own are closed to nobody, and so may be ours
        Path(folder).chmod(0o755)
        spy = shutil.copy(find_executable() or "", folder)
        answer = subprocess.run(
            [sys.executable, "-c", script, spy],
            capture_output=True,
            text=True,
            check=False,
            env={"TMPDIR": "/tmp"},
            cwd=ROOT,
        )

    assert "ptrace is not permitted" in answer.stdout and "SYS_PTRACE" in answer.stdout, answer
