"""The reader of Python stacks in another process's memory: against py-spy, on real processes of every Python
here."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Observation, SourceFailed, SourceWorks, StackSample, Unparsed
from diag.sources.host.proc import ProcessReader
from diag.sources.stacks import pyspy, remote_stack
from diag.sources.stacks.remote_stack import memory
from diag.sources.stacks.remote_stack.image import Unsupported
from diag.sources.stacks.remote_stack.layouts import layout_of, published
from diag.sources.stacks.remote_stack.lines import line_of
from tests.inject.targets import HOLD_GIL, WAIT, Target, plain_env, run_python

needs_pyspy = pytest.mark.skipif(pyspy.find_executable() is None, reason="py-spy is not installed")
KNOWN = ((3, 11), (3, 12), (3, 13))

# Generators, C calls that call back, comprehensions, properties, a coroutine, a lambda, names beyond ASCII, a
# deep stack.
ZOO = """
import asyncio, functools, sys, threading
waits = threading.Event()
up = threading.Semaphore(0)
def wait():
    up.release()
    waits.wait()
def inner():
    wait()
    yield 1
def outer():
    yield from inner()
class Größe:
    @property
    def method(self):
        return [x for x in outer()]
    def __exit__(self, *error): wait()
    def __enter__(self): return self
def by_sort():
    sorted([2, 1], key=functools.cmp_to_key(lambda a, b: wait()))
def in_with():
    with Größe():
        pass
async def main(): await other()
async def other(): wait()
def deep(n):
    return deep(n - 1) if n else wait()
works = {"gen-thréad": lambda: Größe().method, "线程": by_sort, "with": in_with, "loop": lambda: asyncio.run(main()),
         "deep": lambda: deep(400)}
for name, work in works.items():
    threading.Thread(target=work, name=name, daemon=True).start()
threading.Thread(target=by_sort, daemon=True).start()
for _ in range(6): up.acquire()
print("ready", flush=True)
sys.stdin.read()
"""
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


@functools.cache
def pythons() -> dict[str, str]:
    """Interpreters here that the reader knows, by version: ours, those on PATH, those of pyenv, the system's."""
    places = [sys.executable, "/usr/bin/python3", *(f"python3.{minor}" for _, minor in KNOWN)]
    places += [str(path) for path in Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3")]
    found: dict[str, str] = {}
    for place in places:
        try:
            free = "bool(sysconfig.get_config_var('Py_GIL_DISABLED'))"
            code = f"import sys, sysconfig; print(sys.version.split()[0], {free}, sys.executable)"
            shown = run_python(code, plain_env(), python=place)
        except OSError:
            continue
        if shown.returncode == 0:
            version, free, path = shown.stdout.split(maxsplit=2)
            if tuple(map(int, version.split(".")[:2])) in KNOWN and free == "False":
                found.setdefault(version, path.strip())
    return found


each_python = pytest.mark.parametrize("python", pythons().values(), ids=pythons().keys())


def parsed(payload: Any) -> list[Observation]:
    return list(remote_stack.parse(Record(remote_stack.SOURCE, payload, rank=0, at=5.0)))


def sample(payload: Any) -> StackSample:
    assert "threads" in payload, payload
    [found] = [fact for fact in parsed(payload) if isinstance(fact, StackSample)]
    return found


def by_pyspy(pid: int) -> StackSample:
    facts = pyspy.parse(Record(pyspy.SOURCE, pyspy.PySpy().dump(pid, 20.0), rank=0, at=5.0))
    return next(fact for fact in facts if isinstance(fact, StackSample))


def face(found: StackSample) -> dict[int, Any]:
    return {thread.thread_id: (thread.name, thread.owns_gil, thread.frames) for thread in found.threads}


def functions(payload: Any) -> list[str]:
    main = sample(payload).main
    assert main is not None
    return [frame.function for frame in main.frames]


def until_asleep(*pids: int) -> None:
    """All threads of these sleep, and did nothing between two looks: what stands still can be compared."""
    end, before = time.monotonic() + 60, None
    while time.monotonic() < end:
        stats = [
            path.read_text().rpartition(")")[2].split()
            for pid in pids
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
        now = [(stat[0], stat[11], stat[12]) for stat in stats]
        switches = [
            line
            for pid in pids
            for path in Path(f"/proc/{pid}/task").glob("*/status")
            for line in path.read_text().splitlines()
            if "ctxt" in line
        ]
        if all(state in "ST" for state, *_ in now) and (now, switches) == before:
            return
        before = (now, switches)
        time.sleep(0.05)
    raise AssertionError(f"never asleep: {pids}")


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
        workers = _children(rank.pid)
        until_asleep(rank.pid, *workers)
        assert len(workers) == 2
        for pid in (rank.pid, *workers):
            assert face(sample(stacks.dump(pid, 20.0))) == face(by_pyspy(pid))
        assert (
            "_worker_loop" in functions(stacks.dump(workers[0]))
            and "__getitem__" in functions(stacks.dump(workers[0]))[-1]
        )


def _children(pid: int) -> list[int]:
    payload = ProcessReader(pid).sample(detail=True)
    return [int(child["stat"].partition(" ")[0]) for child in payload["children"]]


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
        [rank] = _children(process.pid)
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


# --- memory that lies
# ------------------------------------------------------------------------------------------


@each_python
def test_torn_memory_never_raises_loops_or_takes_long(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a real process, and reads of it of which each hundredth is changed at random or cut off
    chance = random.Random(7)
    real = os.pread

    def torn(fd: int, size: int, at: int) -> bytes:
        data = bytearray(real(fd, size, at))
        if data and chance.random() < 0.01:
            for _ in range(chance.choice([1, 4])):
                place, width = chance.randrange(len(data)), chance.choice([1, 8])
                data[place : place + width] = chance.choice(
                    [chance.randbytes(width), b"\0" * width, b"\xff" * width]
                )
        if chance.random() < 0.005:
            del data[chance.randrange(len(data) + 1) :]
        return bytes(data)

    with Target(ZOO, plain_env(), python=python) as rank:
        monkeypatch.setattr(memory.os, "pread", torn)
        found: Counter[str] = Counter()
        for _ in range(400):
            stacks, began = remote_stack.RemoteStacks(), time.monotonic()
            for _ in range(2):
                payload = stacks.dump(rank.pid, 1.0)
                assert all(not isinstance(fact, Unparsed) for fact in parsed(payload))
                found[payload.get("failed", "read")] += 1
            assert time.monotonic() - began < 5.0
            stacks.close()
    # then every reading is a stack or a word for why not
    assert set(found) <= {"read", *remote_stack.FAILURES}
    assert found["read"] > 400 and len(found) > 1


def test_reading_is_bounded_in_calls_bytes_and_time() -> None:
    own = memory.Memory(os.getpid())
    own.begin(1.0)
    kept = b"x" * 4096
    place = id(kept) + 32
    with pytest.raises(memory.Torn, match="more than a process can have"):
        for _ in range(100_000):
            own.read(place, 4096)
    own.begin(0.0)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            own.read(place, 8)
    for address in (0, -8, 1 << 63, 1 << 70):
        with pytest.raises(memory.Torn):
            own.begin(1.0)
            own.read(address, 8)
    own.close()


@pytest.mark.parametrize(
    "head", [b"", b"xdebugpy", b"xdebugpy" + b"\xff" * 576, b"xdebugpy" + b"\0" * 576, b"\0" * 584]
)
def test_offsets_of_an_interpreter_that_is_not_known_are_refused(head: bytes) -> None:
    with pytest.raises(Unsupported):
        published(head)


@pytest.mark.parametrize("version", [0x030A0DF0, 0x030E00F0, 0x030B00A1, 0x020B00F0, 0])
def test_versions_that_are_not_known_are_refused(version: int) -> None:
    with pytest.raises(Unsupported):
        layout_of(version)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="location tables came with Python 3.11")
def test_lines_are_those_that_the_interpreter_itself_tells() -> None:
    checked = 0
    for module in (subprocess, random, functools):
        todo = [compile(Path(str(module.__file__)).read_text(), "module", "exec")]
        while todo:
            code = todo.pop()
            todo += [const for const in code.co_consts if isinstance(const, type(code))]
            for start, end, line in code.co_lines():
                told = code.co_firstlineno if line is None else line
                for at in range(start, end, 2):
                    assert line_of(code.co_linetable, code.co_firstlineno, at // 2) == told
                    checked += 1
    assert checked > 5000


@given(st.binary(max_size=300), st.integers(-(2**31), 2**31), st.integers(-10, 10**6))
def test_location_table_of_garbage_gives_a_number(table: bytes, first: int, at: int) -> None:
    assert isinstance(line_of(table, first, at), int)


# --- parsing
# ---------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["pid", "codes", "threads", "failed", "id", "name", "frames", "owns_gil", "detail", "parent_pid"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(
    JSON
    | st.builds(lambda codes, thread: {"pid": 1, "codes": codes, "threads": [thread]}, JSON, JSON)
    | st.builds(
        lambda frames: {
            "pid": 1,
            "codes": [["f", "a.py"]],
            "threads": [{"id": 1, "name": "", "owns_gil": False, "frames": frames}],
        },
        JSON | st.lists(st.integers()),
    )
    | st.builds(lambda inner: {"pid": 1, "failed": inner}, JSON)
)
def test_garbage_is_unparsed_and_never_raises(payload: Any) -> None:
    assert all(isinstance(fact, Observation) for fact in parsed(payload))


def test_stack_withdraws_what_py_spy_could_not_do() -> None:
    thread = {"id": 1, "name": "MainThread", "owns_gil": False, "frames": [0, 7]}
    facts = parsed({"pid": 1, "codes": [["main", "a.py"]], "threads": [thread]})
    assert {fact.source for fact in facts if isinstance(fact, SourceWorks)} == {"remote_stack", "pyspy"}


def test_process_that_the_kernel_holds_up_is_told_and_a_child_is_not() -> None:
    held = {
        "pid": 1,
        "failed": "timed_out",
        "detail": "an earlier reading of it has not come back from the kernel",
    }
    [failed] = parsed(held)
    assert isinstance(failed, SourceFailed) and "took too long" in failed.reason
    assert parsed(held | {"parent_pid": 7}) == [] == parsed({"pid": 1, "failed": "gone"})
