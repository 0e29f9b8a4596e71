"""Processes that wait for each other, or for threads that they do not have: real ones, blocked for real."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.wait_text import format_chain
from diag.model import Record
from diag.model.observations.waits import WaitsRead
from diag.sources.waits import SOURCE, WaitReader, parse
from tests.blocked import LOOK, Start, chain, until


def child_of(pid: int) -> int:
    """The only one, once it is there."""
    deadline = time.monotonic() + 20
    while True:
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
        if found.strip():
            return int(found)
        assert time.monotonic() < deadline


# -- a process with a single thread ------------------------------------------------------------------------------

# The lock is taken by a thread that the copy does not have.
FORKED = """
import os, threading, time
held = threading.Lock()
threading.Thread(target=lambda: (held.acquire(), time.sleep(900)), daemon=True).start()
while not held.locked(): time.sleep(0.01)
pid = os.fork()
if not pid:
    %s
ready(); os.waitpid(pid, 0)
"""


OURS = "import faulthandler; faulthandler.register(50); "  # what diag itself puts into a rank


@pytest.mark.parametrize("before", ["", OURS])
def test_fork_that_waits_for_a_thread_which_it_does_not_have_is_a_dead_end(start: Start, before: str) -> None:
    pid = start(FORKED % f"{before}held.acquire()")
    read, thread = until(pid, "condition", child_of(pid))

    assert (thread.wait.dead_end, thread.wait.forked) == ("alone", True)
    assert thread.wait.libraries is not None
    assert [one.forked for one in read.processes] == [False, True]
    found = chain(read, pid)
    assert ([step.process.pid for step in found.steps], found.end) == ([pid, child_of(pid)], "dead_end")
    assert kernel_cause(found) == "forked_without_threads"
    assert "it has none: it was forked without its parent's" in format_chain(found)


@pytest.mark.parametrize(("number", "dead_end"), [(50, "alone"), (51, "")])
def test_signal_on_which_diag_has_stacks_written_wakes_nobody(
    start: Start, number: int, dead_end: str
) -> None:
    """diag's hook registers it in every process of a job; any other real-time signal may be a timer's."""
    act = f"import faulthandler; faulthandler.register({number}, file=open(os.devnull, 'w')); held.acquire()"
    pid = start(FORKED % act)
    _, thread = until(pid, "condition", child_of(pid))

    assert thread.wait.dead_end == dead_end


def test_lock_that_the_only_thread_took_twice_is_a_dead_end_without_a_fork(start: Start) -> None:
    read, thread = until(
        pid := start("import threading; held = threading.Lock(); held.acquire(); ready(); held.acquire()"),
        "condition",
    )

    assert (thread.wait.dead_end, thread.wait.forked) == ("alone", False)
    assert kernel_cause(chain(read, pid)) == "lock_of_a_lone_thread"


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        ("held.acquire(timeout=900)", "condition"),
        # what a signal may end: a timer's, or one of a child that ends
        (
            "import signal; signal.signal(signal.SIGALRM, print); signal.alarm(900); held.acquire()",
            "condition",
        ),
        (
            "import signal; signal.signal(signal.SIGCHLD, print); os.fork() or time.sleep(900); held.acquire()",
            "condition",
        ),
        ("import signal; signal.signal(51, print); held.acquire()", "condition"),
        # what another process may release
        ("import multiprocessing as m; one = m.Lock(); one.acquire(); one.acquire()", "semaphore"),
        # what another thread may
        (
            "threading.Thread(target=time.sleep, args=(900,), daemon=True).start(); held.acquire()",
            "condition",
        ),
    ],
    ids=["timeout", "timer", "child", "signal", "between processes", "thread"],
)
def test_wait_that_something_may_still_end_is_no_dead_end(start: Start, act: str, kind: str) -> None:
    pid = start(FORKED % act)
    read, thread = until(pid, kind, child_of(pid))

    assert thread.wait.dead_end == ""
    assert chain(read, pid).end == "no_owner"


def told(read_of: int, change: object) -> WaitsRead:
    payload = json.loads(json.dumps(WaitReader(read_of).sample(LOOK)))
    change(payload["processes"])  # type: ignore[operator]
    (read,) = parse(Record(SOURCE, payload, 0, "node", time.time()))
    return read  # type: ignore[return-value]


def test_process_of_which_not_all_is_known_is_no_dead_end(start: Start) -> None:
    pid = start(FORKED % "held.acquire()")
    child = str(child_of(pid))
    until(pid, "condition", int(child))

    def end(change: object) -> str:
        return chain(told(pid, change), pid).last.wait.dead_end

    assert end(lambda processes: None) == "alone"
    assert end(lambda processes: processes[child].pop("caught")) == ""  # a record of an earlier version
    # whom the handlers of signals cannot be asked of, and one whose parent lent it its memory (vfork)
    assert end(lambda processes: processes[child].update(caught="")) == ""
    assert end(lambda processes: processes[child].update(threads_left_out=1)) == ""
    assert end(lambda processes: processes[child]["threads"][child].pop("before")) == ""  # seen once only
    lent = {"wchan": "kernel_clone", "syscall": "58 0x0 0x0 0x0 0x0 0x0 0x0 0x1 0x1"}

    def lend(processes: dict[str, dict[str, dict[str, dict[str, str]]]]) -> None:
        main = processes[str(pid)]["threads"][str(pid)]
        main.update(lent, stat=main["stat"].replace(") S ", ") D ", 1))

    assert told(pid, lend).process(int(child)).thread().wait.dead_end == ""  # type: ignore[union-attr]


# -- processes that wait for each other at a pipe -------------------------------------------------------------------

JOINED = """
import multiprocessing as m, sys, threading, time
m.set_start_method("fork")
def put(queue): queue.put(bytes(1 << 20))
queue = m.Queue()
if %r: threading.Thread(target=time.sleep, args=(900,), name="reader", daemon=True).start()
children = [m.Process(target=put, args=(queue,)) for _ in range(2)]
children[0].start()
assert queue._reader.poll(60)  # it has the queue's lock, and writes
children[1].start(); ready()
for one in children: one.join()
"""


def until_cycle(pid: int) -> WaitsRead:
    """Once its children have come to their last wait."""
    deadline = time.monotonic() + 30
    while True:
        read, _ = until(pid, "child")
        found = chain(read, pid)
        if found.end == "cycle" and len(found.last.wait.others) == 1:
            return read
        assert time.monotonic() < deadline, format_chain(found)


@pytest.mark.parametrize("with_reader", [False, True])
def test_children_joined_before_their_queue_is_read_wait_in_a_circle(start: Start, with_reader: bool) -> None:
    """What their siblings inherited of the pipe is no reader; a thread of the parent may be one."""
    read = until_cycle(pid := start(JOINED % with_reader))

    found = chain(read, pid)
    assert (found.end, found.at) == ("cycle", 0)
    last = found.last.wait
    assert (last.kind, [other.pid for other in last.others]) == ("pipe_write", [pid])
    assert kernel_cause(found) == ("child_does_not_end" if with_reader else "processes_wait_for_each_other")
    assert f"and so pid {pid} waits for itself" in format_chain(found)
    assert ("a deadlock" in format_chain(found)) is not with_reader


def test_program_whose_output_is_read_only_after_it_ended_waits_in_a_circle(start: Start) -> None:
    code = (
        "import subprocess, sys\n"
        "one = subprocess.Popen([sys.executable, '-c', 'print(7 * str(10 ** 4000) * 9)'], stdout=subprocess.PIPE)\n"
        "ready(); one.wait()"
    )
    read, _ = until(pid := start(code), "child")
    read, _ = until(pid, "pipe_write", child_of(pid))

    assert kernel_cause(chain(read, pid)) == "processes_wait_for_each_other"


def test_forked_reader_that_is_busy_with_something_else_is_still_a_reader(start: Start) -> None:
    """The parent has the pipe open as well, and waits for the writer."""
    code = (
        "import os, time\nr, w = os.pipe()\n"
        "if not os.fork(): os.close(w); time.sleep(900); os.read(r, 1)\n"
        "writer = os.fork()\n"
        "if not writer: os.write(w, bytes(1 << 20)); os._exit(0)\n"
        "ready(); os.waitpid(writer, 0)"
    )
    pid = start(code)
    deadline = time.monotonic() + 20
    while True:
        read, _ = until(pid, "child")
        found = chain(read, pid)
        if found.last.wait.kind == "pipe_write" or len(found.steps) > 2:
            break
        assert time.monotonic() < deadline
    writer = next(step for step in found.steps if step.wait.kind == "pipe_write")

    assert len({other.pid for other in writer.wait.others}) == 2
    assert kernel_cause(found) == "child_does_not_end"
