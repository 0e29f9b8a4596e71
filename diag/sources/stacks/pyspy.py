"""Python stacks of a process, read from outside by `py-spy dump --nonblocking`: the rank is never stopped.

For interpreters that `remote_stack` does not know, and for native frames, which stop it: only when a person
asks.

`PySpy.dump` does the reading, within a deadline; `parse` makes stacks of it. Children are asked one by one by
the caller, because py-spy's own `--subprocesses` leaves them out of its JSON. Where it is denied, see
`faulthandler`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diag.model import NotChecked, Payload, Record
from diag.model.observations import Frame, Observation, ThreadStack
from diag.sources.host.process_tree import colon_fields, read_text
from diag.sources.payload import guarded
from diag.sources.stacks import native
from diag.sources.stacks.facts import asked_of, failure, owner, sample

SOURCE = "pyspy"

# What can go wrong, by the word in the payload.
FAILURES = {
    "not_found": "py-spy is not installed",
    "denied": "ptrace is not permitted",
    "gone": "the process has ended",
    "not_python": "py-spy found no Python in the process",
    "timed_out": "py-spy did not finish in time",
    "failed": "py-spy failed",
    "in_kernel": "a thread is in the kernel and cannot be stopped",
}

_MAX_FRAMES = 1000  # ours: Python's own recursion limit
_OF_THREAD = (
    "thread_name",
    "os_thread_id",
    "thread_id",
    "active",
    "owns_gil",
)  # what we use, less the frames
_MAX_THREADS = 500  # ours: data loaders and servers have some tens
# Nothing of the job's environment: LD_PRELOAD and RUST_* would change what we start.
_ENVIRONMENT = {"LC_ALL": "C", "RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}


def find_executable() -> str | None:
    """The binary that the package `py-spy` puts beside our interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


class PySpy:
    """Runs one py-spy at a time for each caller; safe to use from several threads."""

    def __init__(self, executable: str | None = None, proc: Path = Path("/proc")) -> None:
        self.executable = executable or find_executable()
        self._proc = proc

    def dump(
        self, pid: int, deadline: float = 1.0, *, parent_pid: int | None = None, native: bool = False
    ) -> Payload:
        """{"pid", "parent_pid"?, "stdout": py-spy's JSON less what we do not use}, or, instead of stdout,
        "failed": a key of FAILURES, "stderr": py-spy's message, "access": what the kernel shows of our right to
        read it.

        A reading may be torn, because nothing is stopped: failures and unlikely main stacks are read once
        more. With `native` frames of C code are there too, and the process is stopped while it is read: 30 ms
        to 2 s.
        """
        payload = asked_of(pid, parent_pid)
        end = time.monotonic() + deadline
        outcome = self._run(pid, end, native)
        if native:
            return payload | outcome
        if outcome.get("failed") == "failed" or ("stdout" in outcome and _looks_torn(outcome["stdout"], pid)):
            again = self._run(pid, end)
            if "stdout" in again or "stdout" not in outcome:
                outcome = again
        return payload | outcome

    def can_read(self, pid: int, deadline: float = 1.0) -> NotChecked | None:
        """None when py-spy works on this process, now and with our rights; else why not. It really tries."""
        payload = self.dump(pid, deadline)
        if "failed" not in payload:
            return None
        reason, remedy = explain(payload)
        return NotChecked(f"stacks of pid {pid}", reason, remedy)

    def _run(self, pid: int, end: float, native: bool = False) -> dict[str, Any]:
        if self.executable is None:
            return {"failed": "not_found", "stderr": ""}
        how = "--native" if native else "--nonblocking"
        command = [self.executable, "dump", how, "--json", "--pid", str(pid)]
        try:
            # close_fds=False lets subprocess use posix_spawn; what Python opens is not inheritable anyway
            # (PEP 446).
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                close_fds=False,
                env=_ENVIRONMENT,
            )
        except OSError as error:
            return {"failed": "not_found", "stderr": f"{self.executable}: {error.strerror}"}
        with process:
            try:
                stdout, stderr = process.communicate(timeout=max(0.001, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # the target goes on: the kernel ends a stop with the one who made it
                return {"failed": "timed_out", "stderr": ""}
        if process.returncode == 0:
            try:
                return {"stdout": _trim(json.loads(stdout))}
            except (ValueError, TypeError, AttributeError) as error:
                return {"failed": "failed", "stderr": f"no JSON of threads: {error}"}
        return self._failure(pid, stderr.decode("utf-8", "replace"))

    def _failure(self, pid: int, stderr: str) -> dict[str, Any]:
        access = _access(pid, self._proc)
        text = stderr.partition("\n\nStack backtrace:")[0].strip()[:1000]
        if access is None:
            return {"failed": "gone", "stderr": text}
        message = text.lower()
        # py-spy 0.4.3, captured here 2026-11-21; not dumpable, other uid, no Python:
        #   0: Permission denied (os error 13)
        #   Permission Denied: Try running again with elevated permissions by going 'sudo env "PATH=$PATH" !!'
        #   Error: Failed to find python version from target process
        if "permission denied" in message or "operation not permitted" in message:
            return {"failed": "denied", "stderr": text, "access": access}
        if "failed to find python version" in message:
            return {"failed": "not_python", "stderr": text}
        return {"failed": "failed", "stderr": text}


def _access(pid: int, proc: Path) -> dict[str, Any] | None:
    """What decides about ptrace; None when the process has ended."""
    fields = colon_fields(read_text(f"{proc}/{pid}/status"))
    try:
        uid = int(fields["Uid"].split()[0])
        owner = (proc / str(pid)).stat().st_uid
        if fields["State"][0] in "ZX":
            return None
    except (OSError, KeyError, ValueError, IndexError):
        return None
    access: dict[str, Any] = {"uid": uid, "our_uid": os.geteuid()}
    if own := colon_fields(read_text(f"{proc}/self/status")):  # mode 2: a filter, as docker's default profile
        access["seccomp"] = own.get("Seccomp") == "2"
    if owner != uid:
        access["dumpable"] = False  # then its files in /proc belong to root
    if (scope := read_text(f"{proc}/sys/kernel/yama/ptrace_scope").strip()).isdecimal():
        access["ptrace_scope"] = int(scope)
    return access


def _trim(threads: Any) -> list[dict[str, Any]]:
    """Raises TypeError or AttributeError for what is no list of threads."""
    if not isinstance(threads, list):
        raise TypeError("not a list")
    return [
        {
            **{name: thread.get(name) for name in _OF_THREAD},
            "frames": [
                {"name": frame.get("name"), "filename": frame.get("filename"), "line": frame.get("line")}
                for frame in thread.get("frames", [])[:_MAX_FRAMES]
            ],
        }
        for thread in threads[:_MAX_THREADS]
    ]


def _looks_torn(threads: Sequence[dict[str, Any]], pid: int) -> bool:
    """A main stack that does not begin where main stacks begin. Those of embedded interpreters are read twice
    for it."""
    for thread in threads:
        main = thread["os_thread_id"] == pid or thread["thread_name"] == "MainThread" or len(threads) == 1
        if thread["frames"] and main:
            begin = str(thread["frames"][-1]["name"])
            return begin not in ("<module>", "_run_module_as_main") and not begin.endswith("_bootstrap")
    return True


# --- reading


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    """Stacks of one process, frames outermost first; also of JSON that `py-spy dump --json` itself wrote.

    Threads without a name and without a Python frame are left out: C threads that once called into Python.
    """
    payload = record.payload
    pid, _ = owner(payload)
    if "failed" in payload:
        yield from failure(record, SOURCE, explain)
        return
    found = payload["stdout"]
    threads = tuple(
        _thread(thread, pid, alone=len(found) == 1)
        for thread in found
        if thread.get("frames") or thread.get("thread_name") or thread.get("os_thread_id") == pid
    )
    yield from sample(record, SOURCE, threads)
    yield from native.seen(record.rank, pid, [one for thread in found for one in thread.get("native") or ()])


def _thread(data: Any, pid: int, *, alone: bool) -> ThreadStack:
    frames = tuple(
        Frame(str(frame["name"]), str(frame.get("filename") or ""), int(frame.get("line") or 0))
        for frame in reversed(data["frames"])
    )
    name = str(data.get("thread_name") or "")
    # Up to Python 3.10 a reader that stops nothing cannot know the system's id (os_thread_id is null); the
    # main thread's is the pid, the others keep the interpreter's own.
    own = pid if alone or name == "MainThread" else data.get("thread_id")
    active, owns_gil = data.get("active"), data.get("owns_gil")
    return ThreadStack(
        int(data.get("os_thread_id") or own or 0),
        name,
        frames,
        active if isinstance(active, bool) else None,
        owns_gil if isinstance(owns_gil, bool) else None,
    )


def explain(payload: Payload) -> tuple[str, str]:
    """Reason and remedy of a payload that says "failed", for people."""
    failed, stderr, pid = str(payload["failed"]), str(payload.get("stderr") or ""), payload["pid"]
    reason = FAILURES.get(failed, failed)
    if failed == "denied":
        return f"cannot read stacks of pid {pid}: {reason}", _remedy(payload.get("access"))
    if failed == "not_found":
        return stderr or reason, "pip install py-spy, in the environment of diag"
    if failed == "not_python":
        return f"{reason} (pid {pid})", "it may be a wrapper around Python, or only just starting"
    if failed == "timed_out":
        return f"{reason} (pid {pid})", "the machine may be overloaded; diag tries again"
    return f"{reason} (pid {pid}): {stderr.splitlines()[0] if stderr else 'no message'}"[:300], ""


def _remedy(access: Any) -> str:
    facts = access if isinstance(access, dict) else {}
    uid, ours = facts.get("uid"), facts.get("our_uid")
    capability = "give diag the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    if facts.get("ptrace_scope") == 3:
        return "kernel.yama.ptrace_scope is 3, which cannot be lifted before the next boot of the machine"
    if uid != ours:
        return (
            f"the process belongs to uid {uid}, diag runs as {ours}: run diag as that user, or {capability}"
        )
    if facts.get("dumpable") is False:
        return f"the process has made itself undumpable (PR_SET_DUMPABLE, or a setuid start): {capability}"
    if facts.get("ptrace_scope") == 2:
        return f"kernel.yama.ptrace_scope is 2: {capability}, or set it to 1 (sysctl)"
    if facts.get("ptrace_scope") == 1:
        return f"kernel.yama.ptrace_scope is 1: start the job with `diag run` without --no-inject, or {capability}"
    if facts.get("seccomp"):
        unconfined = "--security-opt seccomp=unconfined (Kubernetes: seccompProfile Unconfined)"
        return f"a seccomp filter may forbid it: {capability}, or {unconfined}"
    return capability
