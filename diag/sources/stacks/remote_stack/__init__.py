"""Python stacks of a process, read from its memory by diag itself: no process is started, none is stopped.

A hundred times cheaper than a py-spy process. CPython 3.11, 3.12 and 3.13 with a GIL and with symbols, 64-bit
Linux; for all else `RemoteStacks.dump` says "unsupported" and the caller asks py-spy.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import Exchange, Frame, Observation, SourceWorks, ThreadStack
from diag.sources.payload import guarded
from diag.sources.stacks.facts import asked_of, failure, owner, sample
from diag.sources.stacks.remote_stack.image import Unsupported
from diag.sources.stacks.remote_stack.memory import Gone, Torn
from diag.sources.stacks.remote_stack.reader import Choice, ProcessStacks
from diag.sources.stacks.remote_stack.values import Redact

SOURCE = "remote_stack"

# What can go wrong, by the word in the payload. The caller asks py-spy then; it knows more interpreters and
# more words.
FAILURES = {
    "gone": "the process has ended",
    "denied": "reading its memory is not permitted",
    "unsupported": "diag cannot read the stacks of this interpreter by itself",
    "torn": "its stacks changed at each attempt",
    "timed_out": "reading its memory took too long",
}

_FAILED_AS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((Gone, FileNotFoundError, ProcessLookupError), "gone"),
    ((TimeoutError,), "timed_out"),
    ((Unsupported,), "unsupported"),
    ((Torn,), "torn"),
    ((OSError,), "denied"),
)
_Reading = Callable[[ProcessStacks, float], dict[str, Any]]
_MOST_PROCESSES = 100  # kept open, of one rank: DataLoader workers and what they start


class RemoteStacks:
    """Keeps what it learnt of each process. Safe to use from several threads; two never read one process at a
    time."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: OrderedDict[int, ProcessStacks] = OrderedDict()

    def dump(self, pid: int, deadline: float = 1.0, *, parent_pid: int | None = None) -> Payload:
        """{"pid", "parent_pid"?, "codes", "threads"} (see `ProcessStacks.read`), or {"pid", "parent_pid"?,
        "failed": a key of FAILURES, "detail"}. The deadline holds unless the kernel itself hangs over
        the process."""
        return asked_of(pid, parent_pid) | self._asked(
            pid, deadline, lambda process, left: process.read(left)
        )

    def variables(
        self,
        pid: int,
        choose: Choice,
        redact: Redact,
        deadline: float = 1.0,
        *,
        parent_pid: int | None = None,
        paths: list[str] | None = None,
    ) -> Payload:
        """{"pid", "parent_pid"?, "threads", "tasks"?: see `ProcessStacks.variables`}, or as `dump` where that fails."""
        return asked_of(pid, parent_pid) | self._asked(
            pid, deadline, lambda process, left: process.variables(left, choose, redact, paths)
        )

    def _asked(self, pid: int, deadline: float, reading: _Reading) -> dict[str, Any]:
        until = time.monotonic() + deadline
        try:
            try:
                return self._read(pid, until, reading)
            except Gone:  # it runs another program now, or is another process
                self._forget(pid)
                return self._read(pid, until, reading)
        except (Gone, Torn, Unsupported, OSError) as error:
            failed = next(word for kinds, word in _FAILED_AS if isinstance(error, kinds))
            if failed in ("gone", "torn"):  # nothing that it was taken for can be trusted
                self._forget(pid)
            return {"failed": failed, "detail": str(error)}

    def _read(self, pid: int, until: float, reading: _Reading) -> dict[str, Any]:
        process = self._known.get(pid)
        if process is None:
            process = self._known[pid] = ProcessStacks(pid, self._proc)
            while len(self._known) > _MOST_PROCESSES:
                self._forget(next(iter(self._known)))
        if not process.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise TimeoutError("an earlier reading of it has not come back from the kernel")
        try:
            return reading(process, max(0.001, until - time.monotonic()))
        finally:
            process.lock.release()

    def _forget(self, pid: int) -> None:
        process = self._known.pop(pid, None)
        if process is not None and process.lock.acquire(blocking=False):
            process.close()
            process.lock.release()

    def keep_only(self, pids: set[int]) -> None:
        """Close what was kept of processes that are not among these."""
        for pid in [pid for pid in list(self._known) if pid not in pids]:
            self._forget(pid)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.keep_only(set())


# --- reading


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    """Stacks of one process, frames outermost first. Threads without a name and without a frame are left out."""
    payload = record.payload
    pid, parent = owner(payload)
    if "failed" in payload:
        yield from failure(record, SOURCE, explain)
        return
    codes = [(str(name), str(file)) for name, file in payload["codes"]]
    threads = tuple(
        ThreadStack(
            int(thread["id"]),
            str(thread["name"]),
            _frames(codes, thread["frames"]),
            owns_gil=thread["owns_gil"] is True,
            exchange=_exchange(thread.get("exchange")),
            objects=_objects(codes, thread.get("objects", ())),
        )
        for thread in payload["threads"]
        if thread["frames"] or thread["name"] or thread["id"] == pid
    )
    if parent is None:
        yield SourceWorks(record.rank, "pyspy")  # it is asked only where we fail, so nothing is missing now
    yield from sample(record, SOURCE, threads)


def explain(payload: Payload) -> tuple[str, str]:
    """Reason and remedy of a payload that says "failed", for people."""
    failed, detail = str(payload["failed"]), str(payload.get("detail") or "")
    remedy = "the machine may be overloaded, or the process hangs in the kernel; diag tries again"
    return f"{FAILURES.get(failed, failed)}: {detail}" if detail else FAILURES.get(failed, failed), remedy


def _exchange(found: Any) -> Exchange | None:
    if found is None:
        return None
    call, peer, tag, uses_isend = found
    return Exchange(call == "send", int(peer), int(tag), uses_isend is True)


def _objects(codes: list[tuple[str, str]], numbers: Any) -> tuple[tuple[str, int], ...]:
    pairs = [(numbers[at], numbers[at + 1]) for at in range(0, len(numbers) - 1, 2)]
    return tuple((codes[int(code)][0], int(address)) for code, address in pairs)


def _frames(codes: list[tuple[str, str]], numbers: Any) -> tuple[Frame, ...]:
    found = []
    for at in range(0, len(numbers), 2):
        code, line = numbers[at], numbers[at + 1]
        if type(code) is not int or type(line) is not int or code < 0:
            raise TypeError("no frame")
        found.append(Frame(*codes[code], line))
    return tuple(found)
