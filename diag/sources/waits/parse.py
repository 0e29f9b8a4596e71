"""Derives from the raw facts what each thread waits for, who could end the wait, and whether anybody can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from diag.model import Record
from diag.model.observations import Observation
from diag.model.observations.waits import Party, ProcessWaits, Shared, Spent, ThreadWait, Wait, WaitsRead
from diag.sources.host.process_tree import named_numbers, split_stat
from diag.sources.payload import guarded
from diag.sources.waits.collect import SOURCE
from diag.sources.waits.decode import Blocked, read_thread
from diag.sources.waits.relatives import Relatives

# Between two readings: a thread that waits for the interpreter wakes 200 times a second, and so spends some CPU.
_IDLE_RATIO = 0.05
_AS_SOCKET = {
    "read": "tcp_receive", "receive": "tcp_receive", "write": "tcp_send", "send": "tcp_send", "connect": "tcp_connect",
    "tcp_accept": "tcp_accept",
}  # fmt: skip
_AS_UNIX = {
    "read": "unix_receive", "receive": "unix_receive", "write": "unix_send", "send": "unix_send",
    "connect": "unix_connect", "tcp_accept": "unix_receive",
}  # fmt: skip
_OPEN = ("ESTABLISHED", "CLOSE_WAIT")  # else the time counts from the machine's start
_RDONLY, _WRONLY = 0, 1
# What only other threads of the same process end.
_OWN = frozenset(("futex", "mutex", "join", "ended"))
_Who = tuple[int, int]  # pid and tid of the one that waits


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    processes = payload["processes"]
    if not isinstance(processes, dict) or not isinstance(payload.get("pid"), int):
        raise ValueError("no processes")
    reading = _Reading(payload)
    yield WaitsRead(
        record.rank,
        payload["pid"],
        reading.over,
        tuple(reading.process(int(pid), row) for pid, row in processes.items() if pid.isdigit()),
        tuple(map(str, payload.get("not_checked", ()))),
        reading.spent(),
    )


def _fields(row: dict[str, Any]) -> list[str]:
    """Of the stat of the process as a whole, from the state on; none where it was not read."""
    return split_stat(row["stat"])[2] if row.get("stat") else []


def _spent(row: dict[str, Any], ticks: float) -> tuple[float, int, int] | None:
    """The kernel adds to a process's own numbers those of the children that it has waited for: in io together, in stat in
    fields of their own (proc(5): cminflt, cmajflt, cutime, cstime)."""
    fields, io = _fields(row), named_numbers(row.get("io"))
    if len(fields) < 15 or "rchar" not in io or "wchar" not in io:
        return None
    return sum(map(int, fields[11:15])) / ticks, io["rchar"] + io["wchar"], int(fields[8]) + int(fields[10])


class _Reading:
    def __init__(self, payload: dict[str, Any]) -> None:
        self.over = float(payload.get("over_seconds") or 0.0)
        self._ticks = float(payload.get("ticks_per_second") or 100)
        self._payload = payload
        self._machine = str(payload.get("machine", ""))
        self._quota: dict[str, int] = payload.get("quota") or {}
        self._processes: dict[str, Any] = payload["processes"]
        self._objects: dict[str, dict[str, Any]] = payload.get("objects") or {}
        self._relatives = Relatives(self._processes, self._machine)

    def process(self, pid: int, row: dict[str, Any]) -> ProcessWaits:
        threads = row.get("threads") or {}
        parsed = (self._thread(pid, int(tid), one, row) for tid, one in threads.items())
        parent = 0
        if main := threads.get(str(pid)):
            parent = int(split_stat(main["stat"])[2][1])
        return ProcessWaits(
            pid,
            parent,
            str(row.get("command", "")),
            tuple(one for one in parsed if one is not None),
            bool(row.get("job", True)),
            int(row.get("threads_left_out", 0)),
            row.get("cpu_limit"),
            self._relatives.is_fork(pid),
            self._age(row),
        )

    def spent(self) -> Spent | None:
        parts = [_spent(row, self._ticks) for row in self._processes.values()]
        known = [part for part in parts if part is not None]
        return Spent(*map(sum, zip(*known, strict=True))) if known and len(known) == len(parts) else None

    def _age(self, row: dict[str, Any]) -> float | None:
        uptime = str(self._payload.get("uptime") or "").partition(" ")[0]
        fields = _fields(row)
        return float(uptime) - int(fields[19]) / self._ticks if uptime and len(fields) > 19 else None

    def _thread(self, pid: int, tid: int, row: dict[str, Any], process: dict[str, Any]) -> ThreadWait | None:
        seen = read_thread(row, self._machine)
        if seen is None:
            return None
        name, fields, wchan, call, blocked = seen
        state = fields[0]
        facts = self._objects.get(row.get("object", ""), {})
        wait = self._wait((pid, tid), blocked, call.name if call is not None else "", facts, process)
        rates = self._rates(row, fields)
        before = row.get("before") or {}
        same = (
            bool(before)
            and state != "R"
            and row.get("syscall") == before.get("syscall")
            and before["stat"].rpartition(")")[2].split()[0] == state
            and (rates.get("cpu_ratio") or 0.0) < _IDLE_RATIO
        )
        return ThreadWait(tid, str(row.get("name") or name), state, wchan or "", wait, same=same, **rates)

    def _held_back(self) -> str:
        throttled, periods = self._quota.get("throttled", 0), self._quota.get("periods", 0)
        often = periods > 0 and throttled * 2 >= periods
        return f"its cgroup's CPU quota was used up in {throttled} of {periods} periods" if often else ""

    def _rates(self, row: dict[str, Any], fields: list[str]) -> dict[str, float]:
        before = row.get("before") or {}
        if not before or self.over <= 0:
            return {}
        rates: dict[str, float] = {}
        earlier = split_stat(before["stat"])[2]
        rates["system_ratio"] = (int(fields[12]) - int(earlier[12])) / self._ticks / self.over
        rates["cpu_ratio"] = (
            (sum(map(int, fields[11:13])) - sum(map(int, earlier[11:13]))) / self._ticks / self.over
        )
        if "schedstat" in row and "schedstat" in before:
            now, then = (
                [int(one) for one in text.split()] for text in (row["schedstat"], before["schedstat"])
            )
            rates["cpu_ratio"] = (now[0] - then[0]) / 1e9 / self.over
            rates["run_delay_ratio"] = (now[1] - then[1]) / 1e9 / self.over
        if "switches" in row and "switches" in before:
            now, then = ([int(one) for one in text.split()] for text in (row["switches"], before["switches"]))
            rates["switches_per_second"] = (now[0] - then[0]) / self.over
            rates["preemptions_per_second"] = (now[1] - then[1]) / self.over
        return {name: round(value, 4) for name, value in rates.items()}

    # -- one wait ---------------------------------------------------------------------------------------------

    def _wait(
        self, who: _Who, blocked: Blocked, call: str, facts: dict[str, Any], process: dict[str, Any]
    ) -> Wait:
        pid = who[0]
        plain = Wait(blocked.kind, call, blocked.fd, reason=blocked.reason)
        if blocked.kind == "running" and process.get("job", True):
            return replace(plain, reason=self._held_back())
        if blocked.kind in ("stopped", "frozen"):
            return replace(plain, dead_end=blocked.kind)
        if blocked.kind in ("child", "vfork"):
            return self._child(pid, plain, blocked)
        if blocked.kind in ("futex", "mutex", "join", "semaphore"):
            return self._lock(pid, plain, blocked, facts, process)
        if blocked.kind == "sleep":
            link, held = str(facts.get("link", "")), _parties(facts.get("held", ()))
            lock = str(facts.get("lock", ""))
            return replace(plain, seconds=facts.get("seconds"), timed=True, path=link, others=held, lock=lock)
        if blocked.kind == "poll":
            return self._poll(who, plain, blocked, facts)
        return self._descriptor(who, plain, facts, in_file_system=blocked.in_file_system)

    def _descriptor(self, who: _Who, wait: Wait, facts: dict[str, Any], *, in_file_system: bool) -> Wait:
        link, kind = str(facts.get("link", "")), wait.kind
        mount = facts.get("mount") or {}
        held = _parties(facts.get("held", ()))
        queue = facts.get("not_accepted") or {}
        waiting = max(1, int(queue.get("waiting", 1))) if queue else 0
        if tcp := facts.get("tcp"):
            return replace(
                wait,
                kind="tcp_accept" if tcp["state"] == "LISTEN" else _AS_SOCKET.get(kind, kind),
                local=tcp["local"],
                peer=tcp["peer"],
                socket_state=tcp["state"],
                silent_seconds=tcp["silent_ms"] / 1000
                if tcp["silent_ms"] is not None and tcp["state"] in _OPEN
                else None,
                received_bytes=tcp.get("received"),
                unread_bytes=tcp["unread"],
                unsent_bytes=tcp["unsent"],
                peer_unread_bytes=tcp.get("peer_unread", 0),
                retransmits=tcp["retransmits"],
                not_accepted=waiting,
                others=held,
            )
        if "unix" in facts:
            unread = facts["unix"].get("peer_unread", 0)
            wait = replace(wait, kind=_AS_UNIX.get(kind, kind), peer_unread_bytes=unread)
            if queue:
                return replace(wait, peer=str(queue.get("local", "")), not_accepted=waiting, others=held)
            pair = wait.kind in ("unix_receive", "unix_send")
            return self._with_holders(who, wait, facts.get("held", []), facts, may_end=not pair)
        if link.startswith("socket:"):
            return replace(wait, kind={"read": "receive", "write": "send"}.get(kind, kind), path=link)
        if link.startswith("pipe:") or facts.get("fifo") or kind in ("pipe_read", "pipe_write"):
            return self._pipe(who, wait, facts)
        if kind == "read" and link.startswith(("/dev/pts/", "/dev/tty")):
            return replace(wait, kind="terminal", path=link)
        if kind in ("read", "write"):
            kind = "file_io" if in_file_system and not _is_device(link, mount) else "other"
        elif kind == "file_io" and _is_device(link, mount):
            kind = "other"
        return replace(
            wait,
            kind=kind,
            path=link,
            mount=str(mount.get("point", "")),
            file_system=str(mount.get("type", "")),
            device=str(mount.get("from", "")),
            mount_answers=mount.get("answers"),
            others=held,
            taken_by=next((max(0, row[4]) for row in facts.get("held", ())[:1] if len(row) > 4), 0),
            beside=tuple((str(row[0]), int(row[1])) for row in facts.get("beside", ())),
        )

    def _pipe(self, who: _Who, wait: Wait, facts: dict[str, Any]) -> Wait:
        reads = wait.kind in ("read", "pipe_read")
        rows = [row for row in facts.get("held", ()) if row[2] != (_RDONLY if reads else _WRONLY)]
        path = str(facts.get("link", ""))
        beside = frozenset(int(pid) for pid in facts.get("beside", ()))
        wait = replace(wait, kind="pipe_read" if reads else "pipe_write", path=path, writers=beside)
        return self._with_holders(who, wait, rows, facts, may_end=not path.startswith("pipe:"))  # or a FIFO

    def _with_holders(
        self, who: _Who, wait: Wait, rows: list[list[Any]], facts: dict[str, Any], *, may_end: bool
    ) -> Wait:
        """A pipe without any other end wakes its waiter (end of file, SIGPIPE), and so does a pair of sockets: where
        nobody is seen to hold that end, one holds it who is not seen. Only where the process itself does, may nobody be
        left to use it. `may_end`: another process may come to hold it."""
        others = _parties(rows)
        strangers = self._without_heirs([other for other in others if other.pid != who[0]])
        whole = not facts.get("unread_processes") and not facts.get("held_left_out")
        if strangers or not others:
            return replace(wait, others=tuple(self._seen_whole(other, whole) for other in strangers))
        if whole and not may_end and self._nobody_else_may_act(*who):
            return replace(wait, dead_end="only_self")
        return replace(wait, others=others[:1])

    def _without_heirs(self, others: list[Party]) -> list[Party]:
        """Without those that hold a pipe's end only because they were forked from another who does, and cannot use it:
        all that they do is wait for locks, of their own or between processes."""
        holding = {other.pid for other in others}
        return [
            other
            for other in others
            if not self._relatives.was_given(other.pid, holding)
            or not self._nobody_else_may_act(other.pid, 0, _OWN | {"semaphore"})
        ]

    def _seen_whole(self, other: Party, whole: bool) -> Party:
        return replace(other, only_main=whole and self._nobody_else_may_act(other.pid, other.pid))

    def _nobody_else_may_act(self, pid: int, tid: int, at_rest: frozenset[str] = _OWN) -> bool:
        """Whether all threads of a process but this one wait for each other, or are a library's own and sleep:
        else one may still use the pipe that it holds."""
        process = self._processes.get(str(pid)) or {}
        threads = process.get("threads") or {}
        if not threads or process.get("threads_left_out"):
            return False
        python = {tid for tid, row in threads.items() if "name" in row}
        return not any(
            self._may_act(row, not python or other in python, at_rest)
            for other, row in threads.items()
            if other != str(tid)
        )

    def _may_act(self, row: dict[str, Any], python: bool, at_rest: frozenset[str]) -> bool:
        """Whether something outside the process, a timeout, or a CPU may let the thread continue."""
        blocked = self._relatives.blocked(row)
        if blocked is None:
            return True
        if python:
            return blocked.kind not in at_rest or blocked.timed
        busy = self._rates(row, split_stat(row["stat"])[2]).get("cpu_ratio", 1.0) >= _IDLE_RATIO
        return busy and blocked.kind != "ended"

    def _poll(self, who: _Who, plain: Wait, blocked: Blocked, facts: dict[str, Any]) -> Wait:
        watched = tuple(
            self._descriptor(
                who,
                Wait("write" if writes else "read", "", fd),
                self._objects.get(key, {}),
                in_file_system=False,  # a file is always ready
            )
            for key, fd, writes in facts.get("of", ())
        )
        timeout = facts.get("timeout_ms", -1)
        seconds = timeout / 1000 if timeout >= 0 else None
        ends = seconds is not None or blocked.timed
        if len(watched) != 1 or plain.call.startswith("epoll"):
            return replace(plain, watched=watched, seconds=seconds, timed=ends)
        # settimeout() makes a receive a poll of one
        dead_end = "" if ends else watched[0].dead_end
        return replace(watched[0], call=plain.call, seconds=seconds, timed=ends, dead_end=dead_end)

    def _child(self, pid: int, wait: Wait, blocked: Blocked) -> Wait:
        children = [
            int(other)
            for other, row in self._processes.items()
            if (main := (row.get("threads") or {}).get(other)) and int(split_stat(main["stat"])[2][1]) == pid
        ]
        if blocked.tid:
            children = [one for one in children if blocked.tid in (one, self._inside(one))] or (
                [blocked.tid] if str(blocked.tid) in self._processes else []
            )
        others = tuple(Party(one, 0, self._processes[str(one)].get("command", "")) for one in children)
        if wait.kind == "vfork":  # its last child, which shows its parent's program until it runs its own
            own = self._processes[str(pid)].get("command", "")
            others = tuple(other for other in others if other.command == own)
            others = tuple(sorted(others, key=lambda other: self._began(other.pid))[-1:])
        return replace(wait, others=others)

    def _began(self, pid: int) -> int:
        return int(split_stat(self._processes[str(pid)]["threads"][str(pid)]["stat"])[2][19])

    def _inside(self, pid: int) -> int:
        """Its pid as its own namespace counts."""
        ns = self._processes[str(pid)].get("ns") or {}
        return next((int(inside) for inside, outside in ns.items() if outside == pid), pid)

    def _lock(
        self, pid: int, wait: Wait, blocked: Blocked, facts: dict[str, Any], process: dict[str, Any]
    ) -> Wait:
        threads, ns = process.get("threads") or {}, process.get("ns") or {}
        wait = replace(wait, timed=blocked.timed)

        def party(number: int) -> Party | None:
            tid = ns.get(str(number), number)
            return Party(pid, tid) if str(tid) in threads else None

        if wait.kind == "join":
            other = party(blocked.tid)
            return replace(wait, others=(other,) if other else ())
        if wait.kind == "semaphore":
            at = facts.get("at") or ("", 0)
            sharers = tuple(Party(row[0], 0, row[1]) for row in facts.get("shared", ()))
            whole = facts.get("shared_whole") is True
            place = Shared(str(at[0]), int(at[1]), sharers, whole) if sharers else None
            return replace(wait, path=str(facts.get("map", "")), shared=place)
        if wait.kind == "mutex":
            owner = facts.get("owner")
            if owner is None:
                return self._if_alone(pid, wait, blocked, process)
            if (held := party(owner)) is not None:
                return replace(wait, others=(held,))
            if (
                blocked.shared
            ):  # of another process, perhaps; of a robust one the kernel says that its owner died
                other = self._processes.get(str(facts.get("owner_process") or ""))
                if not other:
                    return wait
                named = Party(facts["owner_process"], owner, str(other.get("command", "")))
                return replace(wait, others=(named,))
            gone = not (process.get("threads_left_out") or blocked.timed or facts.get("owner_lives"))
            dead_end = "owner_ended" if gone else ""
            return replace(wait, dead_end=dead_end, reason=f"its owner was thread {owner}")
        for name, kind in (("gil", "gil"), ("join", "join"), ("rlock", "mutex")):
            if (held := party(facts.get(name, 0))) is not None:
                return replace(wait, kind=kind, others=(held,))
        return self._if_alone(
            pid, replace(wait, kind="condition", of_python=bool(facts.get("python_lock"))), blocked, process
        )

    def _if_alone(self, pid: int, wait: Wait, blocked: Blocked, process: dict[str, Any]) -> Wait:
        """A futex that no other process can reach, and that no other thread is left to wake."""
        if blocked.timed or blocked.shared or not self._relatives.is_alone(pid):
            return wait
        loaded = process.get("libraries")
        return replace(
            wait,
            dead_end="alone",
            forked=self._relatives.is_fork(pid),
            libraries=None if loaded is None else tuple(map(str, loaded)),
        )


def _parties(rows: Iterable[list[Any]]) -> tuple[Party, ...]:
    """Processes by [pid, descriptor, mode, command]."""
    return tuple(Party(row[0], 0, row[3], row[1]) for row in rows)


def _is_device(link: str, mount: dict[str, Any]) -> bool:
    """What has no file system behind it that could fail to answer: a device's file, or none at all. /dev/shm holds
    files, and a container has its devices in a tmpfs or one by one."""
    return link.startswith("anon_inode:") or (
        link.startswith("/dev/") and mount.get("point", "/dev") in ("/dev", "/dev/pts", link)
    )
