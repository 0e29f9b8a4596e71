"""Who is at the other end of a pipe, FIFO, socket or lock on a file: real processes, blocked for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.lock_circles import lock_name
from diag.detectors.hang.wait_text import format_chain
from diag.model import Record
from diag.model.observations.waits import ThreadWait, WaitsRead
from diag.sources.waits import SOURCE, WaitReader, parse
from tests.blocked import LOOK, Start, chain, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_pipe_leads_to_the_process_that_may_write(start: Start) -> None:
    code = "import os, time\nr, w = os.pipe()\nif os.fork(): os.close(w); ready(); os.read(r, 1)\nelse: os.close(r); time.sleep(900)"
    read, thread = until(pid := start(code), "pipe_read")

    (child,) = [process.pid for process in read.processes if process.pid != pid]
    assert [other.pid for other in thread.wait.others] == [child]
    assert thread.wait.dead_end == ""


ONLY_ITSELF = "import os\nr, w = os.pipe(); ready(); os.read(r, 1)"


def test_pipe_that_only_its_reader_could_write_to_is_a_dead_end(start: Start) -> None:
    read, thread = until(pid := start(ONLY_ITSELF), "pipe_read")

    assert thread.wait.dead_end == "only_self"
    assert chain(read, pid).end == "dead_end"


@pytest.mark.parametrize("missing", ["unread_processes", "held_left_out"])
def test_pipe_of_which_not_all_holders_are_known_is_no_dead_end(start: Start, missing: str) -> None:
    until(pid := start(ONLY_ITSELF), "pipe_read")
    payload = json.loads(json.dumps(WaitReader(pid).sample(LOOK)))
    (facts,) = [facts for facts in payload["objects"].values() if "held" in facts]
    facts[missing] = 1

    (read,) = parse(Record(SOURCE, payload, 0, "node", time.time()))
    assert (chain(read, pid).end, chain(read, pid).last.wait.dead_end) == ("itself", "")


@needs_root
def test_pipe_that_an_ancestor_of_another_user_may_hold_is_no_dead_end(start: Start) -> None:
    """As a batch system's daemon holds the standard input of what it starts for a user."""
    code = (
        "import os, subprocess\nr, w = os.pipe()\n"
        "user = ('setpriv', '--reuid=65534', '--regid=65534', '--clear-groups')\n"
        "p = subprocess.Popen((*user, 'cat'), stdin=r, pass_fds=(w,)); ready(); p.wait()"
    )
    parent = start(code)
    child = int(
        subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=True).stdout
    )
    _, thread = until(child, "pipe_read")
    assert [other.pid for other in thread.wait.others] == [parent]

    look = (
        "import json, os, sys; from diag.sources.waits import WaitReader\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(json.dumps(WaitReader(int(sys.argv[1])).sample(0.1)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look, str(child)], capture_output=True, text=True, check=True
    )
    (read,) = parse(Record(SOURCE, json.loads(done.stdout), 0, "node", 0.0))
    assert (chain(read, child).last.wait.kind, chain(read, child).last.wait.dead_end) == ("pipe_read", "")


THREADS = """
import os, queue, socket, threading, time
a, b = socket.socketpair(); r, w = os.pipe()
def write(after): after(); os.write(w, b"x")
threading.Thread(target=write, args=(%s,), daemon=True).start()
ready(); os.read(r, 1)
"""


@pytest.mark.parametrize(
    ("after", "dead_end"),
    [
        ("queue.Queue().get", "only_self"),
        ("threading.main_thread().join", "only_self"),
        ("lambda: queue.Queue().get(timeout=900)", ""),
        ("lambda: time.sleep(900)", ""),
        ("lambda: a.recv(1)", ""),
        ("lambda: [None for _ in iter(int, 1)]", ""),
    ],
)
def test_thread_that_may_still_write_to_the_pipe_keeps_it_from_being_a_dead_end(
    start: Start, after: str, dead_end: str
) -> None:
    pid = start(THREADS % after)  # the other thread may have yet to come to its wait
    read, thread = until(pid, "pipe_read", when=lambda _, thread: thread.wait.dead_end == dead_end)

    if not dead_end:
        assert [other.pid for other in thread.wait.others] == [pid]
        assert chain(read, pid).end == "itself"
        assert "only this process itself holds" in format_chain(chain(read, pid))


def test_connection_to_a_child_that_ended_is_a_dead_end_where_the_parent_kept_both_ends(start: Start) -> None:
    """As multiprocessing.Pipe() gives them: nobody closes the child's end in the parent."""
    code = (
        "import multiprocessing as m, os\nours, theirs = m.Pipe()\n"
        "if not os.fork(): os._exit(1)\n"
        "os.wait(); ready(); ours.recv()"
    )
    read, thread = until(pid := start(code), "unix_receive")

    assert (thread.wait.dead_end, chain(read, pid).end) == ("only_self", "dead_end")
    assert kernel_cause(chain(read, pid)) == "pipe_without_other_end"


def test_connection_to_a_thread_that_may_answer_is_no_dead_end(start: Start) -> None:
    code = (
        "import socket, threading, time\na, b = socket.socketpair()\n"
        "threading.Thread(target=time.sleep, args=(900,), daemon=True).start(); ready(); a.recv(1)"
    )
    read, thread = until(pid := start(code), "unix_receive")

    assert (thread.wait.dead_end, chain(read, pid).end) == ("", "itself")


def test_pipe_that_is_polled_for_a_time_is_no_dead_end(start: Start) -> None:
    _, thread = until(
        start("import os, select\nr, w = os.pipe(); ready(); select.select([r], [], [], 900)"), "pipe_read"
    )

    assert thread.wait.dead_end == ""


def test_writer_is_found_behind_many_readers(start: Start) -> None:
    code = (
        "import os, time\nr, w = os.pipe()\n"
        "for _ in range(20):\n    if not os.fork(): os.close(w); time.sleep(900)\n"
        "if not os.fork(): os.close(r); time.sleep(900)\n"
        "os.close(w); ready(); os.read(r, 1)"
    )
    seen = set()

    def one(read: WaitsRead, thread: ThreadWait) -> bool:  # the readers have yet to close their writing end
        seen.add(thread.wait.dead_end)
        return len(thread.wait.others) == 1

    _, thread = until(pid := start(code), "pipe_read", when=one)
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout

    assert seen == {""}
    assert thread.wait.others[0].pid == max(map(int, children.split()))


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


def test_full_pipe_shows_who_else_writes_to_it_but_not_who_reads_it(start: Start) -> None:
    code = (
        "import os, time\n"
        "r, w = os.pipe()\n"
        "if not os.fork(): os.close(w); time.sleep(900)\n"
        "os.close(r)\n"
        "if not os.fork(): time.sleep(900)\n"
        "ready(); os.write(w, bytes(1 << 20))"
    )
    _, thread = until(pid := start(code), "pipe_write", when=lambda read, one: len(one.wait.writers) == 1)

    (reader,) = [other.pid for other in thread.wait.others]
    assert not thread.wait.writers & {pid, reader}


def test_fifo_without_other_end_names_its_path(start: Start, tmp_path: object) -> None:
    path = f"{tmp_path}/orders"
    os.mkfifo(path)
    _, thread = until(start("import sys; ready(); open(sys.argv[1])", path), "fifo_open")

    assert thread.wait.path == path


@pytest.mark.parametrize(
    ("mode", "act", "kind"),
    [
        ("os.O_RDONLY", "os.read(f, 1)", "pipe_read"),
        ("os.O_WRONLY", "os.write(f, bytes(1 << 20))", "pipe_write"),
        ("os.O_RDONLY", "select.select([f], [], [])", "pipe_read"),
    ],
)
def test_named_fifo_leads_to_who_has_opened_its_other_end(
    start: Start, tmp_path: object, mode: str, act: str, kind: str
) -> None:
    os.mkfifo(path := f"{tmp_path}/orders")
    code = (
        "import os, select, sys, time\n"
        f"if not os.fork(): f = os.open(sys.argv[1], os.O_RDWR); f = os.open(sys.argv[1], {mode} ^ 1); time.sleep(900)\n"
        f"f = os.open(sys.argv[1], {mode}); ready(); {act}"
    )
    read, thread = until(pid := start(code, path), kind)

    assert (thread.wait.path, thread.wait.dead_end) == (path, "")
    assert {other.pid for other in thread.wait.others} == {
        one.pid for one in read.processes if one.pid != pid
    }
    assert f"FIFO {path}" in format_chain(chain(read, pid))


def test_fifo_that_only_its_reader_has_open_is_no_dead_end(start: Start, tmp_path: object) -> None:
    """Anybody may open it."""
    os.mkfifo(path := f"{tmp_path}/orders")
    code = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR); ready(); os.read(f, 1)"
    read, thread = until(pid := start(code, path), "pipe_read")

    assert (thread.wait.path, thread.wait.dead_end, chain(read, pid).end) == (path, "", "itself")


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("import os; f = os.eventfd(0); ready(); os.eventfd_read(f)", "anon_inode:[eventfd]"),
        ("import ctypes, os; f = ctypes.CDLL(None).inotify_init(); ready(); os.read(f, 1)", "anon_inode:inotify"),
        (
            "import ctypes, os; f = ctypes.CDLL(None).timerfd_create(1, 0); ready(); os.read(f, 8)",
            "anon_inode:[timerfd]",
        ),
        ("import os; f = os.open('/dev/kmsg', 0); os.lseek(f, 0, 2); ready(); os.read(f, 9000)", "/dev/kmsg"),
    ],
)  # fmt: skip
def test_what_is_no_file_is_not_the_file_systems_fault(start: Start, code: str, path: str) -> None:
    if path.startswith("/dev/") and not os.access(path, os.R_OK):
        pytest.skip(f"may not read {path}")
    read, thread = until(pid := start(code), "other")

    assert (thread.wait.call, thread.wait.path) == ("read", path)
    assert chain(read, pid).end == "outside"
    assert path.removeprefix("anon_inode:").strip("[]") in format_chain(chain(read, pid))


SHARED_MUTEX = """
import ctypes, mmap, os, time
c = ctypes.CDLL(None); attribute = ctypes.create_string_buffer(8)
memory = mmap.mmap(-1, 4096); mutex = ctypes.addressof(ctypes.c_char.from_buffer(memory))
c.pthread_mutexattr_init(attribute); c.pthread_mutexattr_setpshared(attribute, 1)
c.pthread_mutex_init(ctypes.c_void_p(mutex), attribute)
if os.fork(): c.pthread_mutex_lock(ctypes.c_void_p(mutex)); memory[100] = 1; ready(); time.sleep(900)
while not memory[100]: time.sleep(0.01)
c.pthread_mutex_lock(ctypes.c_void_p(mutex))
"""


def test_mutex_that_another_process_holds_leads_there(start: Start) -> None:
    pid = start(SHARED_MUTEX)
    child = int(subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout)
    read, thread = until(pid, "mutex", child)

    assert (thread.wait.dead_end, [other.pid for other in thread.wait.others]) == ("", [pid])
    assert chain(read, child).end == "sleeps"


def test_file_lock_leads_to_its_holder(start: Start, tmp_path: object) -> None:
    code = (
        "import fcntl, os, sys, time\nf = open(sys.argv[1], 'w'); fcntl.flock(f, 2)\n"
        "if os.fork(): ready(); time.sleep(900)\nf.close(); g = open(sys.argv[1]); fcntl.flock(g, 2)"
    )
    pid = start(code, path := f"{tmp_path}/lock")
    child = int(subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout)
    read, thread = until(pid, "file_lock", child)

    assert (thread.wait.path, [other.pid for other in thread.wait.others]) == (path, [pid])
    assert thread.wait.taken_by == pid
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
    assert thread.wait.taken_by not in (0, holder.pid)


ON_TMPFS = """
import ctypes, fcntl, os, sys, time
c = ctypes.CDLL(None, use_errno=True)
assert c.unshare(0x20000) == 0 and c.mount(None, b"/", None, 0x44000, None) == 0  # a private mount namespace
assert c.mount(b"t", sys.argv[1].encode(), b"tmpfs", 0, None) == 0
f = open(sys.argv[1] + "/lock", "w"); fcntl.flock(f, 2)
if not os.fork():
    f.close(); g = open(sys.argv[1] + "/lock"); fcntl.flock(g, 2)
ready(); time.sleep(900)
"""


@needs_root
def test_file_lock_on_another_device_with_the_same_inode_is_another(start: Start, tmp_path: object) -> None:
    pids = [start(ON_TMPFS, f"{tmp_path}") for _ in range(2)]
    for pid in pids:
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout
        _, thread = until(pid, "file_lock", int(found))
        assert [other.pid for other in thread.wait.others] == [pid]


def test_file_lock_of_an_open_file_description_leads_to_its_holder(start: Start, tmp_path: object) -> None:
    code = (
        "import fcntl, os, struct, sys, time\nlock = struct.pack('hhqqi4x', 1, 0, 0, 0, 0)\n"
        "f = open(sys.argv[1], 'w'); fcntl.fcntl(f, 37, lock)\n"  # F_OFD_SETLK, F_OFD_SETLKW
        "if os.fork(): ready(); time.sleep(900)\nf.close(); g = open(sys.argv[1], 'w'); fcntl.fcntl(g, 38, lock)"
    )
    pid = start(code, f"{tmp_path}/lock")
    child = int(subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout)
    _, thread = until(pid, "file_lock", child)

    assert [other.pid for other in thread.wait.others] == [pid]


def test_file_lock_that_the_waiter_holds_itself_leads_to_itself(start: Start, tmp_path: object) -> None:
    code = (
        "import fcntl, sys; f, g = open(sys.argv[1], 'w'), open(sys.argv[1], 'w')\n"
        "fcntl.flock(f, 2); ready(); fcntl.flock(g, 2)"
    )
    read, thread = until(pid := start(code, f"{tmp_path}/lock"), "file_lock")

    assert ([other.pid for other in thread.wait.others], chain(read, pid).end) == ([pid], "itself")


WRITES_A_DATABASE = """
import os, sqlite3, sys, time
sqlite3.connect(sys.argv[1]).execute("create table if not exists runs (step)")
r, w = os.pipe()
if os.fork():
    os.read(r, 1); ready()
    sqlite3.connect(sys.argv[1], timeout=900).execute("insert into runs values (1)")
else:
    held = sqlite3.connect(sys.argv[1]); held.execute("insert into runs values (0)"); os.write(w, b"x"); time.sleep(900)
"""


def test_sleep_in_a_database_leads_to_who_has_locked_its_file(start: Start, tmp_path: object) -> None:
    """SQLite's busy handler sleeps and tries again: the kernel knows of no wait for the lock."""
    _, thread = until(pid := start(WRITES_A_DATABASE, path := f"{tmp_path}/runs.db"), "sleep")

    (holder,) = thread.wait.others
    assert (thread.wait.path, os.getpgid(holder.pid)) == (path, pid) and holder.pid != pid
    assert thread.wait.lock == "POSIX WRITE 1073741825 1073741825"
    assert lock_name(thread.wait).startswith("SQLite's RESERVED lock")


def test_write_lock_of_a_database_with_a_write_ahead_log_is_known(start: Start, tmp_path: object) -> None:
    code = WRITES_A_DATABASE.replace(
        "import os",
        "import os, sqlite3, sys\nsqlite3.connect(sys.argv[1]).execute('pragma journal_mode=wal')\nimport os",
        1,
    )
    _, thread = until(start(code, path := f"{tmp_path}/runs.db"), "sleep")

    assert thread.wait.path == f"{path}-shm"
    assert lock_name(thread.wait).startswith("SQLite's write lock (WAL)")


def test_locks_on_other_files_of_the_folder_are_known_with_who_has_them(
    start: Start, tmp_path: object
) -> None:
    code = (
        "import fcntl, os, sys, time\nr, w = os.pipe()\n"
        "def take(name):\n    f = open(sys.argv[1] + name, 'w'); fcntl.flock(f, 2); return f\n"
        "for name in ('/slot0', '/slot1'):\n"
        "    if not os.fork(): kept = take(name); os.write(w, b'x'); time.sleep(900)\n"
        "open(sys.argv[1] + '/free', 'w')\n"
        "os.read(r, 1); os.read(r, 1); ready(); take('/slot0')"
    )
    _, thread = until(pid := start(code, f"{tmp_path}"), "file_lock")

    ((path, other),) = thread.wait.beside
    assert path == f"{tmp_path}/slot1" and other not in (pid, *thread.wait.pids)


def test_sleep_of_a_process_whose_files_only_itself_has_locked_leads_to_nobody(
    start: Start, tmp_path: object
) -> None:
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); ready(); time.sleep(900)"
    _, thread = until(start(code, f"{tmp_path}/lock"), "sleep")

    assert (thread.wait.path, thread.wait.others) == ("", ())
