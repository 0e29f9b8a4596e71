"""One reading of a session of Ray: its processes, the stacks and waits of those that may wait for others, its own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from diag.launch.launchers.secrets import redacted
from diag.model import Payload
from diag.sources.host.process_tree import descendants, read_argv
from diag.sources.ray.logs import Growing, last_status
from diag.sources.ray.sessions import Session
from diag.sources.stacks.remote_stack import RemoteStacks
from diag.sources.waits.collect import WaitReader

SOURCE = "ray"
_MOST_WORKERS = 64  # whose stacks are read
_MOST_WAITS = 12  # whose sockets are looked at
_STACK_SECONDS = 0.5
_WAIT_SECONDS = 0.2
_RAN_NS = 10_000_000  # within that time: 5 % of a core
_IDLE = "main_loop"  # where a worker waits for its next task: ray/_private/worker.py


class RayReader:
    """Reads memory and /proc alone: nothing stops, and Ray is not asked. Raises nothing."""

    def __init__(self, session: Session, driver: int | None = None) -> None:
        """`driver`: the job's; None for whichever there are."""
        self.session, self._driver = session, driver
        self._stacks = RemoteStacks(session.proc)
        self._files = [Growing(f"{session.logs}/{name}") for name in ("raylet.out", "gcs_server.out")]

    def sample(self) -> Payload:
        session, members = self.session, self.session.members()
        drivers = [pid for pid in members.drivers if self._driver in (None, pid)] or list(members.drivers)
        workers = session.workers_of(drivers[0], members) if len(drivers) == 1 else list(members.workers)
        stacks = {pid: self._stacks.dump(pid, _STACK_SECONDS) for pid in [*drivers, *workers[:_MOST_WORKERS]]}
        waits: dict[int, Payload] = {}
        titles = self._titles(workers)
        # an actor of coroutines runs a method while its main thread is in Ray's loop
        at_work = [pid for pid in workers if "." in titles.get(str(pid), "") or _works(stacks.get(pid, {}))]
        for pid in at_work[:_MOST_WAITS]:
            waits[pid] = self._waits(pid, stacks[pid])
        known = {*drivers, *workers}
        services = {other for read in waits.values() for other in _strangers(read)} - known
        for pid in sorted(services)[:_MOST_WAITS]:
            stacks[pid] = self._stacks.dump(pid, _STACK_SECONDS)
            waits[pid] = self._waits(pid, stacks[pid])  # and those of what it has started
        daemons = [
            pid for pid in (session.raylet, *descendants(session.raylet, session.proc)) if pid not in known
        ]
        self._stacks.keep_only({*known, *services})
        for file in self._files:
            file.read(session.files)
        return {
            "session": session.folder,
            "drivers": self._titles(drivers),
            "workers": titles,
            "daemons": self._titles(pid for pid in daemons if pid not in services),
            "services": self._titles(sorted(services)),
            "ended": {str(pid): name for pid, name in members.names.items() if pid not in known},
            "stacks": {str(pid): one for pid, one in stacks.items() if "failed" not in one},
            "waits": {str(pid): one for pid, one in waits.items()},
            "status": last_status(f"{session.logs}/monitor.log", session.files),
            "lines": [line for file in self._files for line in file.lines],
        }

    def _waits(self, pid: int, stack: Payload) -> Payload:
        """Without the threads of C++ that Ray and torch have in each process, as long as they rest."""
        read = WaitReader(pid, self.session.proc).sample(_WAIT_SECONDS)
        python = {str(thread["id"]) for thread in stack.get("threads", ())}
        for number, row in read["processes"].items():
            threads = row["threads"]
            kept = {tid for tid in threads if tid == number or tid in python or _ran(threads[tid])}
            row["threads"] = {tid: one for tid, one in threads.items() if tid in kept}
        read["objects"] = _needed(read)
        return read

    def _titles(self, pids: Iterable[int]) -> dict[str, str]:
        """Of those that still live."""
        proc = self.session.proc
        words = {pid: [word for word in read_argv(pid, proc) if word] for pid in pids}
        return {str(pid): " ".join(redacted(argv))[:200] for pid, argv in words.items() if argv}

    def close(self) -> None:
        self._stacks.close()


def _works(stack: Payload) -> bool:
    """It is somewhere else than in Ray's loop that waits for tasks, as far as could be read."""
    codes: list[Any] = stack.get("codes", [])
    frames = [thread["frames"] for thread in stack.get("threads", ()) if thread["id"] == stack["pid"]]
    return not frames or len(frames[0]) < 2 or not str(codes[frames[0][-2]][0]).endswith(_IDLE)


def _ran(thread: dict[str, Any]) -> bool:
    """Or was in no wait that ends by itself in no time."""
    before, now = thread.get("before", {}).get("schedstat", ""), thread.get("schedstat", "")
    spent = [int(one.split()[0]) for one in (before, now) if one]
    state = str(thread.get("stat", "")).rpartition(") ")[2][:1]
    return state != "S" or len(spent) < 2 or spent[1] - spent[0] > _RAN_NS


def _needed(read: Payload) -> dict[str, Any]:
    """The objects that the kept threads wait for, and those that these name."""
    known: dict[str, Any] = read["objects"]
    todo = [
        one["object"]
        for row in read["processes"].values()
        for one in row["threads"].values()
        if "object" in one
    ]
    for key in todo:  # grows
        todo += [name for name in _words(known.get(key)) if name in known and name not in todo]
    return {key: known[key] for key in dict.fromkeys(todo) if key in known}


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _words(one)


def _strangers(read: Payload) -> list[int]:
    return [int(pid) for pid, row in read["processes"].items() if not row["job"]]
