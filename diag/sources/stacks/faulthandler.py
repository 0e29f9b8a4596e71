"""Python stacks of a process by signal, for where ptrace is denied: no rights but those of kill(2), the GIL
not needed.

The hook in the rank (`diag/launch/inject`) has registered the interpreter's faulthandler on a real-time signal;
`dump` sends it and reads what comes. `parse` makes stacks of the text. It interrupts sleeping system calls of
the target (EINTR), so py-spy is asked first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal as signals
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.model import Payload, Record
from diag.model.observations import Frame, Observation, ThreadStack, Unparsed
from diag.sources.host.process_tree import colon_fields
from diag.sources.payload import failures_of, guarded
from diag.sources.stacks.facts import asked_of, failure, owner, sample

SOURCE = "faulthandler"
DEFAULT_SIGNAL = 50  # same as diag/launch/inject/_diag_hook.py, where the choice is explained

_POLL_SECONDS = 0.002  # an answer takes 1 to 25 ms; measured
_QUIET_SECONDS = 0.06  # ours, only where the kernel cannot show us that the handler has returned
_SILENT_SECONDS = 0.1  # ours: so long after the handler returned, nothing will come any more
_MAX_BYTES = 4 << 20  # 100 threads of 100 frames (faulthandler's own limits) of 200 bytes are 2 MB


class _Failed(Exception):
    pass


def dump(
    pid: int,
    run_dir: Path,
    signal: int = DEFAULT_SIGNAL,
    deadline: float = 1.0,
    *,
    parent_pid: int | None = None,
    proc: Path = Path("/proc"),
) -> Payload:
    """Ask `pid` for its stacks and wait at most `deadline` seconds.

    {"pid", "parent_pid"?, "text"} or {"pid", "parent_pid"?, "failed": a key of failures.yaml, "detail"}. The
    signal is sent at most once, only to a process that catches it and has none pending: uncaught it would
    kill, unanswered pile up.
    """
    payload = asked_of(pid, parent_pid)
    try:
        with contextlib.closing(_Target(pid, signal, proc)) as target:
            payload["text"] = _ask(target, run_dir, time.monotonic() + deadline)
    except _Failed as failure:
        payload["failed"], payload["detail"] = str(failure.args[0]), str(failure.args[1])
    except (FileNotFoundError, ProcessLookupError) as error:
        payload["failed"], payload["detail"] = "gone", str(error)
    except OSError as error:
        payload["failed"], payload["detail"] = "denied", str(error)
    return payload


def _ask(target: _Target, run_dir: Path, end: float) -> str:
    status = _willing(target, end)
    owner = _file_owner(target, run_dir)
    with _open(run_dir / "stacks" / f"{owner}.txt") as file:
        _lock(file, end)
        _still_open(target, owner, file, run_dir)
        os.ftruncate(file, 0)  # what is there came too late for its reader
        _willing(target, end)
        target.send()
        text = _answer(target, file, end, watch_mask=not status.blocked)
        os.ftruncate(file, 0)
    # forked children have their parent's thread ids
    if len(set(found := _THREAD_ID.findall(text))) != len(found):
        raise _Failed("mixed", f"{len(found)} threads, some twice")
    return text


@dataclass(frozen=True, slots=True)
class _Status:
    state: str
    caught: bool
    pending: bool
    blocked: bool  # in the main thread


class _Target:
    """One process, held by a pidfd where the kernel has them, so that a reused pid is never signalled."""

    def __init__(self, pid: int, number: int, proc: Path) -> None:
        self.pid, self.number, self.proc = pid, number, proc
        self.folder = proc / str(pid)
        self._pidfd: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:  # before Linux 5.3, or a seccomp filter of a container runtime
            pass

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def status(self) -> _Status:
        return self._read(self.folder / "status")

    def blocked_everywhere(self) -> bool:
        tasks = [self._read(path) for path in self.folder.glob("task/*/status")]
        return bool(tasks) and all(task.blocked for task in tasks)

    def _read(self, path: Path) -> _Status:
        # Linux 6.8, H200 host, 2026-11-21:
        #   State:	S (sleeping)
        #   ShdPnd:	0000000000000000
        #   SigCgt:	0000000100000002
        fields = colon_fields(path.read_text("utf-8", "replace"))

        def has(*names: str) -> bool:
            return any(int(fields.get(name) or "0", 16) >> (self.number - 1) & 1 for name in names)

        state = fields.get("State", "?")[:1]
        return _Status(state, has("SigCgt"), has("ShdPnd", "SigPnd"), has("SigBlk"))

    def send(self) -> None:
        if self._pidfd is None:
            os.kill(self.pid, self.number)
        else:
            signals.pidfd_send_signal(self._pidfd, self.number)


def _willing(target: _Target, end: float) -> _Status:
    """The target's status once it can take the signal; raises when it cannot."""
    while True:
        status = target.status()
        if status.state in "ZX":
            raise _Failed("gone", f"state {status.state}")
        if status.state in "Tt":
            raise _Failed("stopped", f"state {status.state}")
        if not status.caught:
            raise _Failed("not_registered", f"signal {target.number} is not in SigCgt")
        if status.pending:
            raise _Failed("pending", f"signal {target.number} is pending")
        if status.blocked and target.blocked_everywhere():
            raise _Failed("blocked", f"signal {target.number} is in SigBlk of all threads")
        if status.state != "D":  # D is mostly a short read of a disk
            return status
        if time.monotonic() >= end:
            raise _Failed("uninterruptible", "state D")
        time.sleep(_POLL_SECONDS)


def _file_owner(target: _Target, run_dir: Path) -> int:
    """Forked children answer into the file of the process that they were forked from."""
    owner = target.pid
    while owner > 1:
        if (run_dir / "stacks" / f"{owner}.txt").exists():
            return owner
        stat = (target.proc / str(owner) / "stat").read_text("utf-8", "replace")
        owner = int(stat.rpartition(")")[2].split()[1])
    raise _Failed("no_file", f"no stacks/{target.pid}.txt in {run_dir}")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _lock(file: int, end: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise _Failed("busy", "the file is locked") from None
        time.sleep(_POLL_SECONDS)


def _still_open(target: _Target, owner: int, file: int, run_dir: Path) -> None:
    """A job that closed all its files may have another under that number now; faulthandler would write into
    it."""
    try:
        number = int(json.loads((run_dir / f"hook.{owner}.json").read_text())["stacks_fd"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # the hook could not write it
    folder = target.folder / "fd"
    try:
        theirs = (folder / str(number)).stat()
    except PermissionError:
        return  # undumpable: it cannot be read, and the number is far above those that are used again
    except FileNotFoundError:
        if not folder.exists():
            raise
        raise _Failed("closed", f"descriptor {number} is closed") from None
    if not os.path.samestat(theirs, os.fstat(file)):
        raise _Failed("closed", f"descriptor {number} is another file")


def _answer(target: _Target, file: int, end: float, *, watch_mask: bool) -> str:
    """Wait until the handler has returned: while it runs, the kernel blocks its signal in that thread."""
    size, changed = 0, time.monotonic()
    while True:
        # The size before the mask: between taking the signal and blocking it the kernel shows neither, and
        # only text that was there BEFORE such a look proves that the handler had begun, and so has returned
        # since.
        begun = os.fstat(file).st_size > 0
        try:
            status = target.status()
            alive = status.state not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            alive = False
        now = time.monotonic()
        if (grown := os.fstat(file).st_size) != size:
            size, changed = grown, now
        if not alive:
            raise _Failed("gone", "it ended while it was asked")
        if not status.pending:
            returned = watch_mask and not status.blocked
            if size and ((begun and returned) or (not watch_mask and now - changed > _QUIET_SECONDS)):
                return os.pread(file, _MAX_BYTES, 0).decode("utf-8", "replace")
            if not size and returned and now - changed > _SILENT_SECONDS:
                raise _Failed("silent", f"signal {target.number} was taken")
        if now >= end:
            raise _Failed("timed_out", "pending" if status.pending else f"{size} bytes so far")
        time.sleep(_POLL_SECONDS)


# --- reading

# CPython 3.11 (faulthandler.register, all threads), captured here 2026-11-21; 3.14 adds the name in brackets:
#   Thread 0x00007f4c1b7fe6c0 (most recent call first):
#     File "/usr/lib/python3.11/threading.py", line 324 in wait
#   Current thread 0x00007f4c20d0d740 [python3] (most recent call first):
#     File "/app/job.py", line 9 in <module>
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.*)\])? \(most recent call first\):")
_THREAD_ID = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]{1,16}) ", re.MULTILINE)
_FRAME = re.compile(r'  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)')
_CUT = "..."  # more than 100 threads: the oldest, the main one among them, are not shown


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    """Stacks of one process, threads in faulthandler's order: youngest first, the main one last.

    Thread ids are those of pthread_self(), as printed; the system's own (as py-spy has them) are not in the
    text.
    """
    owner(record.payload)
    text = record.payload.get("text")
    if not isinstance(text, str):
        yield from failure(record, SOURCE, _explain)
    elif threads := _threads(text):
        yield from sample(record, SOURCE, threads)
    else:
        yield Unparsed(record.rank, SOURCE, "no thread in the text", text[:200])


def _explain(payload: Payload) -> tuple[str, str]:
    failed, detail = str(payload["failed"]), str(payload.get("detail", ""))
    reason, remedy = failures_of(SOURCE).get(failed, (failed, ""))
    return f"{reason} ({detail})" if detail else reason, remedy


def _threads(text: str) -> tuple[ThreadStack, ...]:
    heads: list[tuple[int, str]] = []
    frames: list[list[Frame]] = []
    cut = inside = False
    for line in text.splitlines():
        if head := _THREAD.fullmatch(line):
            heads.append((int(head[2], 16), head[3] or ""))
            frames.append([])
            inside = True
        elif inside and (frame := _FRAME.fullmatch(line)):
            number = int(frame[2]) if frame[2].isdecimal() and len(frame[2]) < 10 else 0
            frames[-1].append(Frame(frame[3], frame[1] or "", number))
        elif line == _CUT:
            cut = True
        elif line and not line.startswith(" "):
            inside = False  # a section that is no Python stack: 3.14 can print C stacks
    last = len(heads) - 1
    return tuple(
        ThreadStack(ident, "MainThread" if i == last and not cut else name, tuple(reversed(frames[i])))
        for i, (ident, name) in enumerate(heads)
    )
