"""Real processes, blocked for real."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

import pytest

from diag.detectors.hang.wait_text import format_chain
from diag.model import Record
from diag.sources.waits import SOURCE, WaitReader, parse
from tests.blocked import Start, chain, look, until
from tests.cgroups import made_cgroup

NEW_LOCKS = sys.version_info >= (3, 13)  # the layout of its locks is another
PAIR = (
    "import socket\n"
    "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
    "c = socket.create_connection(s.getsockname()); a, _ = s.accept()\n"
    ""
)


def test_receive_names_its_peer_and_how_long_it_is_silent(start: Start) -> None:
    _, thread = until(pid := start(PAIR + "ready(); c.recv(1)"), "tcp_receive")

    wait = thread.wait
    assert (wait.call, wait.socket_state, wait.unread_bytes) == ("recvfrom", "ESTABLISHED", 0)
    assert wait.peer.startswith("127.0.0.1:") and wait.silent_seconds is not None and wait.silent_seconds < 60
    assert [other.pid for other in wait.others] == [pid]


def test_receive_with_a_timeout_is_a_receive(start: Start) -> None:
    _, thread = until(start(PAIR + "c.settimeout(500); ready(); c.recv(1)"), "tcp_receive")

    assert (thread.wait.call, thread.wait.seconds) == ("poll", 500.0)


def test_send_to_a_peer_that_does_not_read_shows_what_is_unsent(start: Start) -> None:
    _, thread = until(start(PAIR + "ready()\nwhile True: c.send(bytes(1 << 20))"), "tcp_send")

    assert thread.wait.unsent_bytes > 1 << 16


def test_connection_that_nobody_accepts_is_a_connect(start: Start) -> None:
    code = (
        "import socket\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(0)\n"
        "kept = []; ready()\n"
        "while True: kept.append(socket.create_connection(s.getsockname()))"
    )
    _, thread = until(start(code), "tcp_connect")

    assert (thread.wait.socket_state, thread.wait.silent_seconds) == ("SYN_SENT", None)


def test_socket_between_two_processes_leads_to_the_other(start: Start) -> None:
    code = (
        PAIR
        + "import os, time\npid = os.fork()\nif pid: c.close(); ready(); a.recv(1)\nelse: a.close(); time.sleep(900)"
    )
    pid = start(code)
    read, thread = until(pid, "tcp_receive")
    (child,) = [process.pid for process in read.processes if process.pid != pid]

    assert [other.pid for other in thread.wait.others] == [child]
    read, _ = until(pid, "sleep", child)
    found = chain(read, pid)
    assert ([step.process.pid for step in found.steps], found.end) == ([pid, child], "sleeps")


def test_unix_socket_leads_to_the_process_behind_it(start: Start) -> None:
    code = (
        "import os, socket, time\n"
        "a, b = socket.socketpair()\n"
        "if os.fork(): b.close(); ready(); a.recv(1)\n"
        "else: a.close(); time.sleep(900)"
    )
    read, thread = until(pid := start(code), "unix_receive")

    assert [other.pid for other in thread.wait.others] == [
        one.pid for one in read.processes if one.pid != pid
    ]


def test_child_is_named_with_its_command_and_what_it_waits_for(start: Start) -> None:
    read, thread = until(
        pid := start("import subprocess; p = subprocess.Popen(['sleep', '900']); ready(); p.wait()"), "child"
    )

    assert [other.command for other in thread.wait.others] == ["sleep 900"]
    found = chain(read, pid)
    assert (found.last.process.command, found.end) == ("sleep 900", "sleeps")


def test_commands_are_kept_without_secrets(start: Start) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()', '--api-key', 'hf_0123456789abcdef'])\n"
        "ready(); p.wait()"
    )
    read, _ = until(start(code), "child")

    assert all("hf_0123456789abcdef" not in process.command for process in read.processes)
    assert any("--api-key" in process.command for process in read.processes)


def test_shell_leads_to_the_program_it_runs(start: Start) -> None:
    pid = start("import os; ready(); os.system('sleep 900; true')")
    until(pid, "child", when=lambda read, _: chain(read, pid).last.process.command == "sleep 900")


def test_sleep_says_what_is_left_of_it(start: Start) -> None:
    _, thread = until(start("import time; ready(); time.sleep(900)"), "sleep")

    assert thread.wait.seconds is not None and 800 < thread.wait.seconds <= 900


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="from Python 3.14 on it has another form")
def test_recursive_lock_leads_to_the_thread_that_owns_it(start: Start) -> None:
    code = (
        "import threading, time\nlock, held = threading.RLock(), threading.Event()\n"
        "def own():\n    lock.acquire(); held.set(); time.sleep(900)\n"
        "threading.Thread(target=own).start(); held.wait(); ready(); lock.acquire()"
    )
    read, thread = until(pid := start(code), "mutex")

    found = chain(read, pid)
    assert [step.main for step in found.steps] == [True, False]
    assert (found.end, thread.wait.others[0].tid) == ("sleeps", found.last.thread.tid)


@pytest.mark.skipif(
    NEW_LOCKS, reason="from Python 3.13 on the waiter's own stack holds what join() waits for"
)
def test_join_leads_to_the_thread_by_its_name(start: Start) -> None:
    code = "import threading, time; t = threading.Thread(target=time.sleep, args=(900,), name='uploader'); t.start(); ready(); t.join()"
    read, _ = until(pid := start(code), "join")

    found = chain(read, pid)
    assert ([step.thread.name for step in found.steps], found.end) == (["MainThread", "uploader"], "sleeps")
    assert format_chain(found).startswith("the main thread waits for thread uploader (tid ")


def nobody_owns_what_is_waited_for(pid: int) -> None:
    read, _ = until(pid, "condition")

    assert chain(read, pid).end == "no_owner"
    assert "not known which thread holds it" in format_chain(chain(read, pid))


@pytest.mark.skipif(not NEW_LOCKS, reason="until Python 3.12 the thread's own lock tells")
def test_join_of_new_pythons_is_not_guessed(start: Start) -> None:
    code = "import threading, time; t = threading.Thread(target=time.sleep, args=(900,)); t.start(); ready(); t.join()"
    nobody_owns_what_is_waited_for(start(code))


def test_two_threads_with_two_locks_are_a_cycle(start: Start) -> None:
    code = (
        "import threading\na, b, met = threading.RLock(), threading.RLock(), threading.Barrier(2)\n"
        "def take(first, second):\n    first.acquire(); met.wait(); second.acquire()\n"
        "threading.Thread(target=take, args=(b, a)).start(); ready(); take(a, b)"
    )
    read, _ = until(pid := start(code), "mutex")
    other = next(one.tid for one in read.process(pid).threads if one.tid != pid)  # type: ignore[union-attr]
    read, _ = until(pid, "mutex", pid, other)

    found = chain(read, pid)
    assert (found.end, found.at, len(found.steps)) == ("cycle", 0, 2)


def test_plain_lock_has_no_owner(start: Start) -> None:
    nobody_owns_what_is_waited_for(
        start(
            "import threading, time; k = threading.Lock(); k.acquire()\n"
            "threading.Thread(target=time.sleep, args=(900,), daemon=True).start(); ready(); k.acquire()"
        )
    )


CONDITION = (
    "import ctypes, threading; c = ctypes.CDLL(None); m, k = ctypes.create_string_buffer(40), ctypes.create_string_buffer(48)\n"
    "c.pthread_mutex_lock(m); ready(); c.pthread_cond_wait(k, m)"
)


@pytest.mark.skipif(NEW_LOCKS, reason="from Python 3.13 on a lock has another form")
@pytest.mark.parametrize(
    ("code", "of_python", "timed"),
    [
        ("import threading; k = threading.Lock(); k.acquire(); ready(); k.acquire()", True, False),
        ("import threading; ready(); threading.Event().wait(900)", True, True),
        ("import queue; ready(); queue.Queue().get()", True, False),
        (CONDITION, False, False),
    ],
)
def test_lock_of_python_is_told_from_a_condition_of_c(
    start: Start, code: str, of_python: bool, timed: bool
) -> None:
    _, thread = until(start(code), "condition")

    assert (thread.wait.of_python, thread.wait.timed) == (of_python, timed)


def test_limit_of_cpu_time_is_that_of_each_process(start: Start) -> None:
    code = (
        "import os, resource, time\n"
        "child = os.fork()\n"
        "if not child: resource.setrlimit(resource.RLIMIT_CPU, (7, 9)); ready(); time.sleep(900)\n"
        "os.waitpid(child, 0)"
    )
    read, _ = until(pid := start(code), "child")

    found = {process.pid == pid: process.cpu_limit_seconds for process in read.processes}
    assert found == {True: None, False: 7}


def test_queue_has_no_owner(start: Start) -> None:
    until(start("import queue; ready(); queue.Queue().get()"), "condition")


def test_lock_between_processes_is_a_semaphore(start: Start) -> None:
    code = "import multiprocessing as m; k = m.get_context('fork').Lock(); k.acquire(); ready(); k.acquire()"
    _, thread = until(start(code), "semaphore")

    assert thread.wait.path.startswith("/dev/shm/sem.")


def test_interpreter_lock_leads_to_the_thread_that_holds_it(start: Start) -> None:
    code = (
        "import ctypes, threading\nhold = ctypes.PyDLL(None).usleep\n"
        "ready(); threading.Thread(target=lambda: hold(900_000_000)).start()"
    )
    read, thread = until(pid := start(code), "gil")

    found = chain(read, pid)
    assert ([step.main for step in found.steps], found.end) == ([True, False], "sleeps")
    assert thread.switches_per_second is not None and thread.switches_per_second > 20


MUTEX = """
import ctypes, sys, threading
c = ctypes.CDLL(None, use_errno=True)
mutex = ctypes.create_string_buffer(64)
def own():
    c.pthread_mutex_lock(mutex)
    if sys.argv[1] == "hold": c.usleep(900_000_000)
thread = threading.Thread(target=own); thread.start()
if sys.argv[1] == "leave": thread.join()
else:
    while not any(mutex.raw[:4]): pass
ready(); c.pthread_mutex_lock(mutex)
"""


def test_mutex_leads_to_its_owner(start: Start) -> None:
    read, _ = until(pid := start(MUTEX, "hold"), "mutex")

    found = chain(read, pid)
    assert ([step.main for step in found.steps], found.end) == ([True, False], "sleeps")


def test_mutex_whose_owner_ended_is_a_dead_end(start: Start) -> None:
    _, thread = until(start(MUTEX, "leave"), "mutex")

    assert thread.wait.dead_end == "owner_ended"


def test_poll_of_several_shows_each(start: Start) -> None:
    code = "import os, select\na, b = os.pipe(), os.pipe(); ready(); select.select([a[0], b[0]], [], [])"
    read, thread = until(pid := start(code), "poll")

    assert [one.kind for one in thread.wait.watched] == ["pipe_read", "pipe_read"]
    assert chain(read, pid).end == "several"


def test_event_loop_shows_what_it_watches(start: Start) -> None:
    _, thread = until(start("import asyncio; ready(); asyncio.run(asyncio.sleep(900))"), "poll")

    assert [one.kind for one in thread.wait.watched] == ["unix_receive"]


def test_stopped_process_is_a_dead_end(start: Start) -> None:
    os.kill(pid := start("import time; ready(); time.sleep(900)"), 19)
    _, thread = until(pid, "stopped")

    assert thread.wait.dead_end == "stopped"


def test_endless_loop_computes_and_is_never_the_same(start: Start) -> None:
    read, thread = until(pid := start("ready()\nwhile True: pass"), "running")

    assert not thread.same
    assert chain(read, pid).end == "computes"


def test_endless_loop_that_its_quota_holds_back_says_so(start: Start) -> None:
    with made_cgroup("cpu") as folder:
        old = (folder / "cpu.cfs_quota_us").exists()
        (folder / ("cpu.cfs_quota_us" if old else "cpu.max")).write_text("2000" if old else "2000 100000")
        # under the policy for idle work it may not come to use up its quota
        code = (
            "import os, sys; os.sched_setscheduler(0, 0, os.sched_param(0))\n"
            "open(sys.argv[1], 'w').write('0'); ready()\nwhile True: pass"
        )
        pid = start(code, f"{folder}/cgroup.procs")
        deadline = time.monotonic() + 20
        reader = WaitReader(pid)
        while True:
            (read,) = parse(Record(SOURCE, reader.sample(0.5), 0, "node", 0.0))
            text = format_chain(chain(read, pid))
            if "its cgroup's CPU quota was used up in " in text:
                break
            assert time.monotonic() < deadline, text
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    assert text.startswith("the main thread computes (")


def test_process_that_is_gone_gives_a_record_without_processes() -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    assert look(child.pid).processes == ()


def test_reader_without_the_right_shows_that_it_may_not_read(start: Start) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    pid = start("import queue; ready(); queue.Queue().get()")
    until(pid, "condition")
    code = (
        "import json, os, sys; from diag.sources.waits import WaitReader\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(json.dumps(WaitReader(int(sys.argv[1])).sample(0.1)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(pid)], capture_output=True, text=True, check=True)

    (read,) = parse(Record(SOURCE, json.loads(done.stdout), 0, "node", 0.0))
    assert read.process(pid).thread().wait.kind == "unreadable"  # type: ignore[union-attr]
    assert chain(read, pid).end == "denied"


def test_process_in_a_pid_namespace_of_its_own_is_followed() -> None:
    """The numbers in its calls and locks are those of its own namespace."""
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(0) != 0:
        pytest.skip("needs root to make a PID namespace")
    code = "import subprocess; p = subprocess.Popen(['sleep', '900']); print('ready', flush=True); p.wait()"
    outer = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert outer.stdout is not None and outer.stdout.readline() == "ready\n"
        inner = int(
            subprocess.run(["pgrep", "-P", str(outer.pid)], capture_output=True, text=True, check=True).stdout
        )
        _, thread = until(inner, "child")
        assert [other.command for other in thread.wait.others] == ["sleep 900"]
    finally:
        outer.kill()
        outer.wait()
