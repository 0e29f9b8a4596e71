"""Real processes, blocked for real. What this machine has not (arm64, a mount that does not answer, another kernel)
is a line of facts as it was seen elsewhere."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from diag.detectors.hang.wait_text import format_chain
from diag.model import Record
from diag.model.observations import Unparsed
from diag.model.observations.waits import ThreadWait, WaitsRead
from diag.sources.waits import SOURCE, WaitReader, parse
from diag.sources.waits.calls import Call, parse_call
from diag.sources.waits.decode import Blocked, blocked_in
from diag.state.wait_chain import Chain, follow

Start = Callable[..., int]
LOOK = 0.1
NEW_LOCKS = sys.version_info >= (3, 13)  # the layout of its locks is another


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code that prints "ready" before it blocks; gives its pid."""
    children = []

    def started(code: str, *words: str) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", f"def ready(): print('ready', flush=True)\n{code}", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child.pid

    yield started
    for child in children:
        os.killpg(child.pid, 9)
        child.wait()


def look(pid: int) -> WaitsRead:
    payload = json.loads(json.dumps(WaitReader(pid).sample(LOOK)))  # as the journal keeps it
    (read,) = parse(Record(SOURCE, payload, 0, "node", time.time()))
    return read


def until(pid: int, kind: str, of: int = 0, tid: int = 0) -> tuple[WaitsRead, ThreadWait]:
    """Looks again until the thread waits so: a process that said "ready" may not be there yet."""
    deadline = time.monotonic() + 20
    while True:
        read = look(pid)
        process = read.process(of or pid)
        thread = process.thread(tid) if process is not None else None
        if (
            thread is not None
            and thread.wait.kind == kind
            and (thread.same or kind in ("running", "stopped"))
        ):
            return read, thread
        assert time.monotonic() < deadline, thread


def chain(read: WaitsRead, pid: int, tid: int = 0) -> Chain:
    found = follow(read, pid, tid)
    assert found is not None
    return found


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


def test_pipe_leads_to_the_process_that_may_write(start: Start) -> None:
    code = "import os, time\nr, w = os.pipe()\nif os.fork(): os.close(w); ready(); os.read(r, 1)\nelse: os.close(r); time.sleep(900)"
    read, thread = until(pid := start(code), "pipe_read")

    (child,) = [process.pid for process in read.processes if process.pid != pid]
    assert [other.pid for other in thread.wait.others] == [child]
    assert thread.wait.dead_end == ""


def test_pipe_that_only_its_reader_could_write_to_is_a_dead_end(start: Start) -> None:
    read, thread = until(pid := start("import os\nr, w = os.pipe(); ready(); os.read(r, 1)"), "pipe_read")

    assert thread.wait.dead_end == "only_self"
    assert chain(read, pid).end == "dead_end"


def test_full_pipe_leads_to_who_should_read_it(start: Start) -> None:
    code = (
        "import os, time\n"
        "r, w = os.pipe()\n"
        "if os.fork(): os.close(r); ready(); os.write(w, bytes(1 << 20))\n"
        "else: os.close(w); time.sleep(900)"
    )
    read, thread = until(pid := start(code), "pipe_write")

    assert [other.pid for other in thread.wait.others] == [
        one.pid for one in read.processes if one.pid != pid
    ]


def test_fifo_without_other_end_names_its_path(start: Start, tmp_path: object) -> None:
    path = f"{tmp_path}/orders"
    os.mkfifo(path)
    _, thread = until(start("import sys; ready(); open(sys.argv[1])", path), "fifo_open")

    assert thread.wait.path == path


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
    deadline = time.monotonic() + 20
    while (
        chain(until(pid, "child")[0], pid).last.process.command != "sleep 900"
    ):  # the shell has yet to start it
        assert time.monotonic() < deadline


def test_sleep_says_what_is_left_of_it(start: Start) -> None:
    _, thread = until(start("import time; ready(); time.sleep(900)"), "sleep")

    assert thread.wait.seconds is not None and 800 < thread.wait.seconds <= 900


@pytest.mark.skipif(NEW_LOCKS, reason="Python 3.13 waits on a lock of another form")
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
    read, _ = until(
        pid := start("import threading; k = threading.Lock(); k.acquire(); ready(); k.acquire()"), "condition"
    )

    assert chain(read, pid).end == "no_owner"


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


def test_file_lock_leads_to_its_holder(start: Start, tmp_path: object) -> None:
    code = (
        "import fcntl, os, sys, time\nf = open(sys.argv[1], 'w'); fcntl.flock(f, 2)\n"
        "if os.fork(): ready(); time.sleep(900)\nf.close(); g = open(sys.argv[1]); fcntl.flock(g, 2)"
    )
    pid = start(code, path := f"{tmp_path}/lock")
    child = int(subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout)
    read, thread = until(pid, "file_lock", child)

    assert (thread.wait.path, [other.pid for other in thread.wait.others]) == (path, [pid])
    assert [step.process.pid for step in chain(read, child).steps] == [child, pid]


def test_file_lock_that_a_fork_keeps_leads_to_the_fork(start: Start, tmp_path: object) -> None:
    """/proc/locks names the process that took it, and that one is gone."""
    code = (
        "import fcntl, os, sys, time\nr, w = os.pipe()\n"
        "if not os.fork():\n"
        "    f = open(sys.argv[1], 'w'); fcntl.flock(f, 2)\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.write(w, b'%d' % os.getpid()); time.sleep(900)\n"
        "os.wait(); os.read(r, 9); g = open(sys.argv[1]); ready(); fcntl.flock(g, 2)"
    )
    _, thread = until(pid := start(code, f"{tmp_path}/lock"), "file_lock")

    (holder,) = thread.wait.others
    assert holder.pid != pid and os.getpgid(holder.pid) == pid


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


# -- lines of facts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "wchan", "call", "kind"),
    [
        ("D", "__refrigerator", "202 0x7f00 0x189 0x0 0x0 0x0 0x0 0x1 0x1", "frozen"),  # Linux 6.18, freezer v1
        ("S", "get_signal", "202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x1 0x1", "frozen"),  # 6.1 and 6.18, freezer v2
        ("D", "kernel_clone", "58 0x0 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "vfork"),  # 6.1 and 6.18
        ("D", "mem_cgroup_handle_over_high", "-1 0x7ffd 0x7f00", "memory"),  # 6.1
        ("D", "folio_wait_bit_common", "0 0x5 0x7f00 0x1000 0x0 0x0 0x0 0x1 0x1", "read"),  # 6.18, FUSE
        ("D", "folio_wait_bit_common", "-1 0x7ffd 0x7f00", "file_io"),  # 6.18: a page fault in a mapped file
        ("S", "handle_userfault", "-1 0x7ffd 0x7f00", "page_fault"),  # 6.18
        ("S", "poll_schedule_timeout.constprop.0", "219 0x7f00 0x1 0x1388 0x0 0x0 0x0 0x1 0x1", "poll"),  # after SIGCONT
        ("S", "rt_mutex_schedule", "202 0x7f00 0x86 0x0 0x0 0x0 0x0 0x1 0x1", "mutex"),  # 6.18
        ("S", "do_wait", "", "child"),  # only the wait channel may be read
        ("S", None, "", "unreadable"),
        ("Z", "0", "-1 0x0 0x0", "ended"),
        ("R", "0", "running", "running"),
    ],
)  # fmt: skip
def test_facts_of_other_machines(state: str, wchan: str | None, call: str, kind: str) -> None:
    assert blocked_in(state, 0, wchan, parse_call(call, "x86_64")).kind == kind


def test_arm64_numbers_are_its_own() -> None:
    assert parse_call("98 0x7f00 0x80 0x2 0x0 0x0 0x0 0x1 0x1", "aarch64") == Call(
        "futex", (0x7F00, 0x80, 2, 0, 0, 0)
    )
    assert (
        blocked_in("S", 0, "futex_wait", parse_call("98 0x7f00 0x80 0x2 0x0 0x0 0x0 0x1 0x1", "aarch64")).kind
        == "mutex"
    )


def test_arguments_have_32_bits_and_a_sign() -> None:
    assert blocked_in("S", 0, "do_wait", Call("wait4", (0xFFFFFFFF, 0, 0, 0, 0, 0))) == Blocked(
        "child", tid=0
    )


@pytest.mark.parametrize("text", ["", "no number", "1 2 x"])
def test_line_that_is_none_is_no_call(text: str) -> None:
    assert parse_call(text) is None


@pytest.mark.parametrize(
    "payload", [{}, {"pid": 1}, {"pid": 1, "processes": []}, {"pid": 1, "processes": {"x": {}}}]
)
def test_torn_record_raises_nothing(payload: dict[str, object]) -> None:
    facts = list(parse(Record(SOURCE, payload, 0, "node", 0.0)))

    assert facts and all(isinstance(fact, (Unparsed, WaitsRead)) for fact in facts)


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
