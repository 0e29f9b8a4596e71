"""The reader of Python stacks in another process's memory: against py-spy, on real processes of every Python
here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from diag.sources.stacks import remote_stack
from tests.inject.targets import HOLD_GIL, WAIT, Target, plain_env
from tests.sources.remote_stacks import (
    KNOWN,
    ZOO,
    by_pyspy,
    children_of,
    each_python,
    face,
    functions,
    needs_pyspy,
    pythons,
    sample,
    until_asleep,
)

# Each way that a forked child comes to be: from the main thread, and from another.
FORKS = """
import os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
def stands():
    os.read(os.pipe()[0], 1)
pids = []
def fork():
    pids.append(os.fork())
    if not pids[-1]:
        stands()
fork()
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print("ready", *pids, flush=True)
sys.stdin.read()
"""
# Frames that come and go all the time, in generators too.
BUSY = """
print("ready", flush=True)
def a(): return b()
def b(): return c()
def c(): return 1
def gen():
    while True: yield a()
while True:
    a()
    for i, x in zip(range(100), gen()): pass
"""
BUSY_STACKS = {
    "<module>",
    *(f"<module>{gen}{calls}" for gen in ("", " gen") for calls in ("", " a", " a b", " a b c")),
}


# --- against py-spy
# --------------------------------------------------------------------------------------------


def test_there_is_a_python_to_test_on() -> None:
    assert sys.version_info[:2] not in KNOWN or pythons()


@needs_pyspy
@each_python
def test_whole_stacks_of_all_threads_are_those_of_py_spy(python: str) -> None:
    # given a process with every kind of frame, asleep
    with Target(ZOO, plain_env(), python=python) as rank:
        until_asleep(rank.pid)
        # when both read it
        ours, theirs = sample(remote_stack.RemoteStacks().dump(rank.pid, 20.0)), by_pyspy(rank.pid)
        # then threads, names, GIL, functions, files and lines are the same
        assert face(ours) == face(theirs)
        assert {"gen-thréad", "线程", "with", "loop", "deep", "MainThread"} <= {
            thread.name for thread in ours.threads
        }
        assert max(len(thread.frames) for thread in ours.threads) > 400
        assert (ours.how, ours.pid, ours.emitted) == ("remote_stack", rank.pid, 5.0)


@needs_pyspy
@each_python
def test_forked_children_are_read_as_themselves(python: str) -> None:
    stacks = remote_stack.RemoteStacks()
    with Target(FORKS, plain_env(PYTHONWARNINGS="ignore"), python=python) as rank:
        children = [int(pid) for pid in rank.said]
        try:
            until_asleep(rank.pid, *children)
            for pid in (rank.pid, *children):
                assert face(sample(stacks.dump(pid, 20.0))) == face(by_pyspy(pid))
            assert functions(stacks.dump(children[0]))[-1] == "stands"
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)


LOADER = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset
class Shards(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        if index >= 4: os.read(os.pipe()[0], 1)
        return torch.zeros(3)
def main():
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    for number, batch in enumerate(DataLoader(Shards(), num_workers=2, prefetch_factor=1)):
        if number == 0: print("ready", flush=True)
main()
"""


@needs_pyspy
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.skipif(sys.version_info[:2] not in KNOWN, reason="this Python is not read from its memory")
def test_torch_rank_and_its_data_loader_workers_are_read_as_py_spy_does() -> None:
    stacks = remote_stack.RemoteStacks()
    with Target(LOADER, plain_env(OMP_NUM_THREADS="1")) as rank:
        workers = children_of(rank.pid)
        until_asleep(rank.pid, *workers)
        assert len(workers) == 2
        for pid in (rank.pid, *workers):
            assert face(sample(stacks.dump(pid, 20.0))) == face(by_pyspy(pid))
        assert (
            "_worker_loop" in functions(stacks.dump(workers[0]))
            and "__getitem__" in functions(stacks.dump(workers[0]))[-1]
        )


# --- ranks that are ill
# ----------------------------------------------------------------------------------------


@each_python
def test_rank_that_holds_the_gil_in_c_is_read_and_known_to_hold_it(python: str) -> None:
    stacks = remote_stack.RemoteStacks()
    with Target(HOLD_GIL, plain_env(), python=python) as rank:
        until_asleep(rank.pid)
        payload = stacks.dump(rank.pid, 5.0, parent_pid=1)
        assert functions(payload) == ["<module>", "hold_gil"]
        main = sample(payload).main
        assert main is not None and (main.thread_id, main.owns_gil) == (rank.pid, True)
        assert sample(payload).parent_pid == 1


@each_python
def test_stopped_process_is_read_and_stays_stopped(python: str) -> None:
    with Target(WAIT, plain_env(), python=python) as rank:
        os.kill(rank.pid, signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert functions(remote_stack.RemoteStacks().dump(rank.pid, 5.0)) == ["<module>", "wait_here"]
        assert Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@each_python
def test_samples_of_a_busy_loop_are_rarely_torn_and_never_for_long(python: str) -> None:
    # given a loop that changes its frames all the time
    stacks = remote_stack.RemoteStacks()
    with Target(BUSY, plain_env(), python=python) as rank:
        # when it is read a thousand times
        found = Counter(
            payload["failed"] if "failed" in payload else " ".join(functions(payload))
            for payload in (stacks.dump(rank.pid, 5.0) for _ in range(1000))
        )
    # then hardly any is wrong (0.1 % were, measured; py-spy 2.7 %), and all places were seen
    assert sum(count for stack, count in found.items() if stack not in BUSY_STACKS) <= 10, found
    assert {"<module>", "<module> gen"} <= set(found)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare(1)")
@pytest.mark.skipif(sys.version_info[:2] not in KNOWN, reason="this Python is not read from its memory")
def test_main_thread_of_a_rank_in_a_container_is_known_by_the_pid_outside() -> None:
    # given a process that is pid 1 of its own world
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", WAIT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != b"ready\n":
            pytest.skip(f"no namespaces here: {process.stderr.read()!r}")
        [rank] = children_of(process.pid)
        # when it is read from outside
        found = sample(remote_stack.RemoteStacks().dump(rank))
        process.kill()
    # then
    assert [thread.thread_id for thread in found.threads] == [rank]
    assert found.main is not None and found.main.frames[-1].function == "wait_here"


@each_python
def test_code_that_took_the_place_of_other_code_is_told_by_its_own_name(python: str) -> None:
    # given a process that makes functions and forgets them: their places in memory are used again
    code = (
        "import sys\nfor number in range(2000):\n    source = f'def work_{number}():\\n' + '\\n' * (number % 50)"
        " + '    print(\"ready\", flush=True); sys.stdin.readline()'\n    names = {'sys': sys}\n    exec(source, names)\n"
        "    names[f'work_{number}']()\n"
    )
    stacks = remote_stack.RemoteStacks()
    with Target(code, plain_env(), python=python) as rank:
        assert rank.process.stdin is not None
        for number in range(30):
            until_asleep(rank.pid)
            main = sample(stacks.dump(rank.pid, 5.0)).main
            assert main is not None
            # then what was learnt of the old one is not said of the new
            assert (main.frames[-1].function, main.frames[-1].line) == (f"work_{number}", 2 + number % 50)
            rank.process.stdin.write("on\n")
            rank.process.stdin.flush()
            rank.read_line()


def test_what_is_no_python_or_has_ended_is_told_apart() -> None:
    stacks = remote_stack.RemoteStacks()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        sleep = stacks.dump(sleeper.pid)
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        zombie = stacks.dump(sleeper.pid)
    nothing = stacks.dump(sleeper.pid)
    assert [payload["failed"] for payload in (sleep, zombie, nothing)] == ["unsupported", "gone", "gone"]


@each_python
def test_rank_that_ended_or_became_another_program_is_not_read_from_what_was_kept(python: str) -> None:
    stacks = remote_stack.RemoteStacks()
    code = "import os, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nos.execvp('sleep', ['sleep', '600'])"
    with Target(code, plain_env(), python=python) as rank:
        assert "threads" in stacks.dump(rank.pid)
        assert rank.process.stdin is not None
        rank.process.stdin.write("on\n")
        rank.process.stdin.flush()
        end = time.monotonic() + 20
        while "threads" in (became := stacks.dump(rank.pid)) or became["failed"] == "gone":
            assert time.monotonic() < end
        assert became["failed"] == "unsupported"
        rank.process.kill()
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        assert stacks.dump(rank.pid)["failed"] == "gone"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_process_of_another_user_is_denied() -> None:
    code = (
        "import json, sys\nfrom diag.sources.stacks import remote_stack\n"
        "print(json.dumps(remote_stack.RemoteStacks().dump(int(sys.argv[1]))))"
    )
    with Target(WAIT, plain_env()) as rank:
        as_nobody = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
        command = [*as_nobody, sys.executable, "-c", code, str(rank.pid)]
        shown = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
        )
    if not shown.stdout and (
        "Permission denied" in shown.stderr or "loading shared libraries" in shown.stderr
    ):
        pytest.skip("another user may not even run this interpreter")
    assert '"denied"' in shown.stdout, shown.stderr
