"""Stacks by signal: from real processes in all the states that a hung rank may be in, and never to their
harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Frame, Observation, SourceFailed, SourceWorks, StackSample, Unparsed
from diag.sources.stacks import faulthandler
from tests.inject.targets import (
    HOLD_GIL,
    ROOT,
    SIGNAL,
    UNDUMPABLE,
    WAIT,
    Target,
    hooked_env,
    other_pythons,
    plain_env,
    without_ptrace,
)


def parsed(payload: Any) -> list[Observation]:
    return list(faulthandler.parse(Record(faulthandler.SOURCE, payload, rank=0, at=5.0)))


def sample(payload: Any) -> StackSample:
    assert "text" in payload, payload
    works, found = parsed(payload)
    assert isinstance(works, SourceWorks) and isinstance(found, StackSample)
    return found


def functions(found: StackSample) -> list[str]:
    assert found.main is not None
    return [frame.function for frame in found.main.frames]


def pending(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("ShdPnd:")[1].split()[0], 16)


@pytest.mark.parametrize("python", [sys.executable, *other_pythons()], ids=lambda path: Path(path).name)
def test_rank_that_holds_the_gil_in_c_answers(tmp_path: Path, python: str) -> None:
    # given
    with Target(HOLD_GIL, hooked_env(tmp_path), python=python) as rank:
        # when asked three times, as a live source does
        found = [sample(faulthandler.dump(rank.pid, tmp_path, SIGNAL, 5.0)) for _ in range(3)]
        # then each has the whole stack, and the file does not grow
        assert [functions(one) for one in found] == [["<module>", "hold_gil"]] * 3
        assert (tmp_path / "stacks" / f"{rank.pid}.txt").stat().st_size == 0
        assert rank.process.poll() is None


def test_ptrace_denied_is_told_by_py_spy_and_the_signal_still_brings_the_stack(tmp_path: Path) -> None:
    # given a rank that nobody without CAP_SYS_PTRACE may read, and a reader without it
    if without_ptrace() and shutil.which("setpriv") is None:
        pytest.skip("root, and no setpriv to drop the capability")
    reader = (
        "import json, sys; from pathlib import Path\nfrom diag.sources.stacks import faulthandler, pyspy\npid = int(sys.argv[1])\n"
        "spy = pyspy.PySpy(); payload = spy.dump(pid, 5.0)\n"
        f"print(json.dumps([payload, pyspy.explain(payload), faulthandler.dump(pid, Path(sys.argv[2]), {SIGNAL}, 5.0)]))"
    )
    with Target(UNDUMPABLE + WAIT, hooked_env(tmp_path)) as rank:
        # when it reads in both ways
        command = [*without_ptrace(), sys.executable, "-c", reader, str(rank.pid), str(tmp_path)]
        done = subprocess.run(
            command, env=plain_env(PYTHONPATH=str(ROOT)), capture_output=True, text=True, check=True
        )
        spied, (reason, remedy), signalled = json.loads(done.stdout)
        # then
        assert spied["failed"] == "denied"
        assert reason == f"cannot read stacks of pid {rank.pid}: ptrace is not permitted"
        assert "SYS_PTRACE" in remedy
        assert functions(sample(signalled)) == ["<module>", "wait_here"]


def test_stopped_rank_fails_at_once_and_gets_no_signal(tmp_path: Path) -> None:
    with Target(WAIT, hooked_env(tmp_path)) as rank:
        # given
        os.kill(rank.pid, signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        # when asked again and again
        began = time.monotonic()
        payloads = [faulthandler.dump(rank.pid, tmp_path, SIGNAL, 5.0) for _ in range(3)]
        # then
        assert time.monotonic() - began < 2.0
        assert {payload["failed"] for payload in payloads} == {"stopped"}
        assert pending(rank.pid) == 0
        # and when it goes on, it answers
        os.kill(rank.pid, signal.SIGCONT)
        assert functions(sample(faulthandler.dump(rank.pid, tmp_path, SIGNAL, 5.0))) == [
            "<module>",
            "wait_here",
        ]


def test_unanswered_signal_is_not_sent_a_second_time(tmp_path: Path) -> None:
    # given a rank with a request pending that it cannot take
    code = f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{SIGNAL}])\n" + WAIT
    with Target(code, hooked_env(tmp_path)) as rank:
        blocked = faulthandler.dump(rank.pid, tmp_path, SIGNAL, 0.2)
        os.kill(rank.pid, SIGNAL)
        asked_before = faulthandler.dump(rank.pid, tmp_path, SIGNAL, 0.2)
        assert (blocked["failed"], asked_before["failed"]) == ("blocked", "pending")


def test_process_that_would_die_of_the_signal_does_not_get_it(tmp_path: Path) -> None:
    with Target(WAIT, plain_env()) as stranger:
        payload = faulthandler.dump(stranger.pid, tmp_path, SIGNAL, 0.2)
        assert payload["failed"] == "not_registered"
        [failed] = parsed(payload)
        assert isinstance(failed, SourceFailed) and "--no-inject" in failed.remedy
        assert stranger.process.poll() is None


def test_job_that_takes_the_signal_for_itself_keeps_it(tmp_path: Path) -> None:
    # given a job that sets a handler of its own after the hook
    code = f"import os, signal\nsignal.signal({SIGNAL}, lambda *_: os.write(1, b'mine\\n'))\n" + WAIT
    with Target(code, hooked_env(tmp_path)) as rank:
        # when
        payload = faulthandler.dump(rank.pid, tmp_path, SIGNAL, 2.0)
        # then it got it once, and we know that it is not ours
        assert (rank.read_line(), payload["failed"]) == ("mine\n", "silent")


def test_file_that_the_job_opened_under_our_number_is_not_written_into(tmp_path: Path) -> None:
    # given a job that closed all and opened its own
    precious = tmp_path / "precious"
    code = (
        f"import os\nos.closerange(3, 4096)\nfd = os.open({str(precious)!r}, os.O_CREAT | os.O_WRONLY)\nos.dup2(fd, 1000)\n"
        + WAIT
    )
    with Target(code, hooked_env(tmp_path)) as rank:
        assert faulthandler.dump(rank.pid, tmp_path, SIGNAL, 0.5)["failed"] == "closed"
        assert precious.read_text() == ""


CHILDREN = """
import multiprocessing, os, sys, threading
def child_waits(pipe):
    pipe.send(os.getpid())
    pipe.recv()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    pipes = [context.Pipe() for _ in range(2)]
    for _, theirs in pipes:
        context.Process(target=child_waits, args=(theirs,), daemon=True).start()
    print("ready", *[ours.recv() for ours, _ in pipes], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loader_children_answer_each_for_itself(tmp_path: Path, method: str) -> None:
    # given a rank with two children, however they were made
    script = tmp_path / "job.py"
    script.write_text(CHILDREN)
    run = "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    with Target(run, hooked_env(tmp_path), [str(script), method]) as rank:
        pids = [rank.pid, *map(int, rank.said)]
        payloads: dict[int, Any] = {}

        def ask(pid: int) -> None:
            payloads[pid] = faulthandler.dump(pid, tmp_path, SIGNAL, 5.0, parent_pid=rank.pid)

        # when all are asked at once
        askers = [threading.Thread(target=ask, args=(pid,)) for pid in pids]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        rank.end()  # it takes its children with it
        # then nobody's answer is in another's
        samples = [sample(payloads[pid]) for pid in pids]
        assert [one.pid for one in samples] == pids
        assert "child_waits" not in functions(samples[0])
        told = [functions(one) for one in samples[1:]]
        assert all("child_waits" in names for names in told), told


def test_more_threads_than_faulthandler_shows_leave_no_thread_taken_for_the_main_one(tmp_path: Path) -> None:
    code = (
        "import threading\nstop = threading.Event()\n"
        "for _ in range(110): threading.Thread(target=stop.wait, daemon=True).start()\n" + WAIT
    )
    with Target(code, hooked_env(tmp_path)) as rank:
        found = sample(faulthandler.dump(rank.pid, tmp_path, SIGNAL, 5.0))
        assert len(found.threads) == 100
        assert "MainThread" not in {thread.name for thread in found.threads}


def test_process_that_has_ended_is_gone(tmp_path: Path) -> None:
    with Target(WAIT, hooked_env(tmp_path)) as rank:
        # given a zombie, then nothing
        rank.process.kill()
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        zombie = faulthandler.dump(rank.pid, tmp_path, SIGNAL, 0.5)
    nothing = faulthandler.dump(rank.pid, tmp_path, SIGNAL, 0.5)
    # then
    assert (zombie["failed"], nothing["failed"]) == ("gone", "gone")
    assert parsed(zombie) == []


def test_missing_stack_file_is_told(tmp_path: Path) -> None:
    with Target(WAIT, hooked_env(tmp_path)) as rank:
        shutil.rmtree(tmp_path / "stacks")
        assert faulthandler.dump(rank.pid, tmp_path, SIGNAL, 0.5)["failed"] == "no_file"


# --- reading
# ---------------------------------------------------------------------------------------------------

# CPython 3.8.18, two threads, captured here 2026-11-21:
PY38 = """\
Thread 0x00007fbf1431e6c0 (most recent call first):
  File "/usr/lib/python3.8/threading.py", line 302 in wait
  File "/usr/lib/python3.8/threading.py", line 890 in _bootstrap

Current thread 0x00007fbf14bdab80 (most recent call first):
  File "<string>", line 6 in inner
  File "<string>", line 8 in <module>
"""
# Written by CPython 3.14's Python/traceback.c as read, not captured: thread names, a thread without frames, a
# C stack.
PY314 = """\
Thread 0x00007fbf1431e6c0 [pt_data "x" pin] (most recent call first):
  <no Python frame>

Thread 0x00007fbf14bdab80 [python3] (most recent call first):
  Garbage-collecting
  File "/a b/"quoted", line 1.py", line 12 in f
  File ???, line ??? in ???

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x48 [0x5a]
"""


def test_frames_are_outermost_first_and_the_last_thread_is_the_main_one() -> None:
    found = sample({"pid": 9, "parent_pid": 4, "text": PY38})
    assert (found.pid, found.parent_pid, found.how, found.emitted) == (9, 4, "faulthandler", 5.0)
    assert [thread.name for thread in found.threads] == ["", "MainThread"]
    assert found.threads[1].frames == (Frame("<module>", "<string>", 8), Frame("inner", "<string>", 6))
    assert found.threads[1].thread_id == 0x7FBF14BDAB80


def test_names_of_python_314_and_odd_frames_are_read() -> None:
    found = sample({"pid": 9, "text": PY314})
    assert [thread.name for thread in found.threads] == ['pt_data "x" pin', "MainThread"]
    assert found.threads[0].frames == ()
    assert found.threads[1].frames == (Frame("???", "", 0), Frame("f", '/a b/"quoted", line 1.py', 12))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["pid", "text", "failed", "parent_pid", "x"]), inner)
    ),
)


@given(JSON)
def test_garbage_is_unparsed_and_never_raises(payload: Any) -> None:
    assert all(isinstance(fact, Observation) for fact in parsed(payload))


@given(st.text() | st.lists(st.sampled_from([*PY38.splitlines(), *PY314.splitlines(), "..."])).map("\n".join))
def test_any_text_is_stacks_or_unparsed(text: str) -> None:
    facts = parsed({"pid": 1, "text": text})
    assert isinstance(facts[-1], StackSample | Unparsed)
