"""Faults that wait inside one machine: lock files, forked locks, queues, pipes, a compiler, a service."""

from __future__ import annotations

import fcntl
import os
import queue
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable

from .runtime import Runtime

_HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(1e6)
"""


def _stale_baton(runtime: Runtime) -> None:
    """torch.utils.cpp_extension's own lock: a file that a killed build leaves, and every later one waits for."""
    from torch.utils.file_baton import FileBaton

    runtime.folder.mkdir(parents=True, exist_ok=True)
    path = runtime.folder / "torch_extensions_lock"
    path.touch()
    runtime.announce(f"file={path}")
    FileBaton(str(path)).wait()


def _file_lock(runtime: Runtime) -> None:
    from filelock import FileLock

    runtime.folder.mkdir(parents=True, exist_ok=True)
    path = runtime.folder / "dataset.lock"
    holder = subprocess.Popen([sys.executable, "-S", "-c", _HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    runtime.announce(f"file={path} holder={holder.pid}")
    FileLock(path).acquire()


def _fork_lock(runtime: Runtime) -> None:
    import multiprocessing

    lock, held, over = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    threading.Thread(target=hold, name="log-flush", daemon=True).start()
    held.wait()
    # The child has a copy of the lock as it is, held, and none of the threads: nobody will ever release it
    # there.
    child = multiprocessing.get_context("fork").Process(target=_log, args=(lock,), daemon=True)
    child.start()
    over.set()
    runtime.announce(f"child={child.pid}")
    child.join()


def _log(lock: threading.Lock) -> None:
    with lock:
        return


def _dead_producer(runtime: Runtime) -> None:
    batches: queue.Queue[int] = queue.Queue()

    def prefetch() -> None:
        os.write(2, b"prefetch thread: OSError: the shard is gone\n")
        raise SystemExit  # ends the thread; a traceback would say no more

    thread = threading.Thread(target=prefetch, name="prefetch", daemon=True)
    thread.start()
    thread.join()
    runtime.announce()
    batches.get()


def _pipe_full(runtime: Runtime) -> None:
    reader, writer = os.pipe()  # the reader is open and never read, as a log shipper that has stopped
    os.set_inheritable(reader, True)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    runtime.announce()
    while True:
        os.write(writer, b"step metrics\n" * 100)


def _compile_wait(runtime: Runtime) -> None:
    from torch.utils import cpp_extension

    runtime.folder.mkdir(parents=True, exist_ok=True)
    compiler, asked = runtime.folder / "hung-g++", runtime.folder / "license.fifo"
    if not asked.exists():
        os.mkfifo(asked)
    # A compiler behind a wrapper (ccache, a license, a network mount) that does not answer: no CPU, no
    # output.
    compiler.write_text(f"#!/bin/sh\nexec cat {asked}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    runtime.announce(f"compiler={compiler}")
    cpp_extension.get_compiler_abi_compatibility_and_version(str(compiler))


def _service_wait(runtime: Runtime) -> None:
    """A server that takes the question and never answers, in a process of its own that stops itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    subprocess.Popen([sys.executable, "-S", "-c", script], pass_fds=(listener.fileno(),))
    listener.close()
    runtime.announce(f"port={port}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(f"http://127.0.0.1:{port}/generate", data=b"{}")


STRIKES: dict[str, Callable[[Runtime], None]] = {
    "stale-baton": _stale_baton,
    "file-lock": _file_lock,
    "fork-lock": _fork_lock,
    "dead-producer": _dead_producer,
    "pipe-full": _pipe_full,
    "compile-wait": _compile_wait,
    "service-wait": _service_wait,
}
