"""What a blocked call's arguments are: the file behind a descriptor, the other end of a pipe or socket, the owner of
a lock. Each is read once, by a key of its own, and kept as found."""

from __future__ import annotations

import os
import re
import struct
import time
from pathlib import Path
from typing import Any

from diag.sources.host.mountinfo import Mount
from diag.sources.host.process_tree import (
    colon_fields,
    descendants,
    read_process,
    read_raw,
    read_text,
    same_namespace,
)
from diag.sources.stacks.remote_stack.image import Unsupported
from diag.sources.stacks.remote_stack.memory import Gone, Memory, Torn
from diag.sources.stacks.remote_stack.reader import ProcessStacks
from diag.sources.waits.decode import Blocked
from diag.sources.waits.ends import Ends
from diag.sources.waits.locks import (
    MALLOC_HEAD,
    find_gil_holder,
    find_rlock_owner,
    is_python_lock,
    mutex_words,
)
from diag.sources.waits.mounts import Mounts
from diag.sources.waits.proc_files import command_of, fdinfo, mounts, open_mode
from diag.sources.waits.sockets import Sockets

_POLLED = 64
_PATH_BYTES = 4096
_NO_FIFO = ("/dev/", "/proc/", "/sys/")  # and may be polled: devices, and files of the kernel's own
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)/")
_LIBRARIES = 64
_SHARERS = 8
_LOOKING_SECONDS = 0.1  # of a reading, at the mappings of others: 2 ms for a torch process
_SEARCHES = 2  # of a reading, for the owner of an RLock: 25 to 100 ms of CPU each


class Objects:
    """`found`: key to facts. `gaps`: what could not be asked for want of a right."""

    def __init__(self, proc: str, mounts: Mounts) -> None:
        self._proc = proc
        self._ends = Ends(proc)
        self._mounts = mounts
        self._asked: list[tuple[int, dict[str, Any]]] = []
        self.found: dict[str, dict[str, Any]] = {}
        self.gaps: set[str] = set()
        self._sockets = Sockets(proc, self._ends, self.gaps)
        self._memories: dict[int, Memory | None] = {}
        self._searches = 0
        self._mapped: dict[int, set[str]] = {}
        self._looking_seconds = _LOOKING_SECONDS
        self._pythons: dict[int, tuple[dict[int, int], dict[int, str]]] = {}

    def learn(self, pid: int, tid: int, blocked: Blocked, *, deep: bool) -> tuple[str, list[int]]:
        """The key of the facts, empty for none, and the pids of this host on the other side.

        `deep`: search the process's memory too, for who owns a lock of Python's.
        """
        key, others = self._learn(pid, tid, blocked, deep=deep)
        mount = self.found.get(key, {}).get("mount")
        if mount and (blocked.in_file_system or blocked.kind == "file_io"):
            self._mounts.ask(pid, mount)
            self._asked.append((pid, mount))
        return key, others

    def hear_mounts(self) -> None:
        for pid, mount in self._asked:
            mount.update(self._mounts.answers(pid, mount))

    def _learn(self, pid: int, tid: int, blocked: Blocked, *, deep: bool) -> tuple[str, list[int]]:
        kind = blocked.kind
        if kind == "poll":
            return self._poll(pid, tid, blocked)
        if kind in ("futex", "mutex", "join", "semaphore") and blocked.address:
            return self._futex(pid, blocked, deep=deep)
        if kind == "sleep":
            return self._sleep(pid, tid, blocked, deep=deep)
        if kind in ("child", "vfork"):
            return "", []
        if kind in ("file_io", "fifo_open") and blocked.address:
            return self._path(pid, blocked)
        if blocked.fd >= 0:
            key = self._descriptor(pid, blocked.fd, fifo=kind in ("pipe_read", "pipe_write"))
            facts = self.found[key]
            if kind == "file_lock" and "link" in facts:
                facts["held"] = self._ends.lock_holders(pid, facts["link"], _file(facts))
                if facts["held"]:
                    facts["beside"] = self._ends.locked_beside(pid, facts["link"])
            return key, self._about(pid, key)
        return "", []

    def owners(self, key: str) -> list[str]:
        """Threads of the same process that are named there as owners, by number."""
        facts = self.found.get(key, {})
        return [str(facts[name]) for name in ("gil", "join", "rlock", "owner") if facts.get(name)]

    def close(self) -> None:
        for memory in self._memories.values():
            if memory is not None:
                memory.close()

    # -- descriptors ------------------------------------------------------------------------------------------

    def _descriptor(self, pid: int, fd: int, *, fifo: bool = False) -> str:
        """`fifo`: what has a path is a FIFO, as the wait shows: the file itself cannot be asked."""
        key = f"{pid}/fd/{fd}"
        known = self.found.get(key)
        if known is not None and (not fifo or known.get("fifo") or "mount" not in known):
            return key
        facts: dict[str, Any] = {}
        self.found[key] = facts
        try:
            link = os.readlink(f"{self._proc}/{pid}/fd/{fd}")
        except OSError as error:
            facts["failed"] = error.strerror
            self.gaps.add(f"descriptors of pid {pid}: {error.strerror}")
            return key
        facts["link"] = link
        info = fdinfo(self._proc, pid, fd)
        facts["mode"] = open_mode(info)
        if link.startswith("pipe:"):
            facts |= self._ends.pipe(pid, link, facts["mode"])
        elif link.startswith("socket:"):
            facts |= self._sockets.facts(pid, int(link[8:-1]))
        elif link == "anon_inode:[eventpoll]":
            facts["epoll"] = [
                int(line.split()[0]) for line in info.get("tfd", "").split("\n") if line.strip()
            ][:_POLLED]
        elif link.startswith("/"):
            facts["mount"] = self._mount(pid, info.get("mnt_id", "-1"))
            if info.get("ino"):
                facts["ino"] = int(info["ino"])
            if fifo and not link.startswith(_NO_FIFO):
                facts["fifo"] = True
                facts |= self._ends.fifo(pid, link, facts["mode"], _file(facts))
        return key

    def _about(self, pid: int, key: str) -> list[int]:
        """The processes at the other end of what alone is waited for."""
        facts = self.found[key]
        others = [row[0] for row in facts.get("held", ()) if row[0] != pid]
        if facts.get("held") and "held_left_out" in facts and not others:
            self._python(pid)  # it holds both ends of a pipe: which of its threads are Python's is asked
        return others

    # -- files ------------------------------------------------------------------------------------------------

    def _mount(self, pid: int, number: str) -> dict[str, Any]:
        row = next((one for one in mounts(self._proc, pid) if one.number == number), None)
        return {} if row is None else self._mount_facts(row)

    def _mount_facts(self, row: Mount) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "device": row.device, "point": row.point, "type": row.type, "from": row.source,
        }  # fmt: skip
        if row.type.startswith("fuse"):
            waiting = read_raw(f"/sys/fs/fuse/connections/{row.device.partition(':')[2]}/waiting")
            if waiting is not None:
                facts["requests_waiting"] = int(waiting)
        return facts

    def _path(self, pid: int, blocked: Blocked) -> tuple[str, list[int]]:
        key = f"{pid}/path/{blocked.address:x}"
        raw = self._read(pid, blocked.address, _PATH_BYTES)
        if raw is None:
            return "", []
        path = raw.split(b"\0", 1)[0].decode(errors="replace")
        if not path.startswith("/"):
            at = f"fd/{blocked.fd}" if blocked.fd >= 0 else "cwd"
            try:
                path = f"{os.readlink(f'{self._proc}/{pid}/{at}')}/{path}".rstrip("/")
            except OSError:
                return "", []
        inside = [
            row
            for row in mounts(self._proc, pid)
            if path == row.point or path.startswith(row.point.rstrip("/") + "/")
        ]
        mount = max(inside, key=lambda row: len(row.point), default=None)
        self.found[key] = {"link": path, "mount": self._mount_facts(mount) if mount else {}}
        return key, []

    # -- memory -----------------------------------------------------------------------------------------------

    def _memory(self, pid: int) -> Memory | None:
        if pid not in self._memories:
            try:
                self._memories[pid] = Memory(pid, Path(self._proc))
            except OSError as error:
                self._memories[pid] = None
                self.gaps.add(f"memory of pid {pid}: {error.strerror}")
        memory = self._memories[pid]
        if memory is not None:
            memory.begin(1.0)
        return memory

    def _read(self, pid: int, address: int, size: int) -> bytes | None:
        memory = self._memory(pid)
        if memory is None or not address:
            return None
        try:
            return memory.some(
                address, min(size, 4096 - address % 4096)
            )  # what is behind the page may not be mapped
        except (Torn, Gone, TimeoutError, OSError):
            return None

    def _sleep(self, pid: int, tid: int, blocked: Blocked, *, deep: bool) -> tuple[str, list[int]]:
        raw = self._read(pid, blocked.address, 16)
        if raw is None or len(raw) < 16:
            return "", []
        seconds, nanoseconds = struct.unpack("=qq", raw)
        left = seconds + nanoseconds / 1e9 - (time.monotonic() if blocked.absolute else 0.0)
        key = f"{pid}/sleep/{tid}"
        facts: dict[str, Any] = {"seconds": round(left, 3), "left": blocked.absolute}
        if deep:
            facts |= self._ends.locked_by_others(pid)
        self.found[key] = facts
        return key, [row[0] for row in facts.get("held", ())]

    def _poll(self, pid: int, tid: int, blocked: Blocked) -> tuple[str, list[int]]:
        fds: list[tuple[int, bool]] = []  # and whether it waits to write alone
        if blocked.fd >= 0:
            epoll = self.found[self._descriptor(pid, blocked.fd)]
            fds = [(fd, False) for fd in epoll.get("epoll", ())]
        elif blocked.count > 0 and (raw := self._read(pid, blocked.address, 8 * min(blocked.count, _POLLED))):
            fds = [
                (fd, events & 1 == 0)
                for fd, events, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8])
            ]
        elif blocked.count < 0 and (raw := self._read(pid, blocked.address, (-blocked.count + 63) // 64 * 8)):
            fds = [(fd, False) for fd in range(-blocked.count) if raw[fd // 8] >> fd % 8 & 1]
        watched = [(self._descriptor(pid, fd, fifo=True), fd, writes) for fd, writes in fds if fd >= 0]
        key = f"{pid}/poll/{tid}"
        self.found[key] = {"of": watched, "timeout_ms": blocked.timeout_ms}
        return key, self._about(pid, watched[0][0]) if len(watched) == 1 else []

    def _futex(self, pid: int, blocked: Blocked, *, deep: bool) -> tuple[str, list[int]]:
        key = f"{pid}/futex/{blocked.address:x}"
        if key in self.found:
            return key, []
        facts: dict[str, Any] = {}
        self.found[key] = facts
        if blocked.kind in ("join", "semaphore"):
            facts["map"], facts["at"] = self._mapping(pid, blocked.address)
            sharers = (
                self._sharers(pid, facts["at"][0]) if blocked.kind == "semaphore" and facts["at"] else []
            )
            if sharers:
                facts["shared"] = [[one, command_of(self._proc, one)] for one in sharers]
                facts["shared_whole"] = self._looking_seconds > 0 and len(sharers) < _SHARERS
            return key, sharers
        raw = self._read(pid, blocked.address, 24)
        if raw is None:
            return key, []
        memory = self._memory(pid)
        assert memory is not None
        if blocked.kind == "mutex":
            facts |= mutex_words(raw)
            if blocked.shared and (owner := facts.get("owner")):
                facts["owner_process"] = self._process_of(pid, owner)
                return key, [one for one in (facts["owner_process"],) if one not in (0, pid)]
            # it may have begun since the threads were listed
            facts["owner_lives"] = (
                read_raw(f"{self._proc}/{pid}/task/{facts.get('owner', 0)}/stat") is not None
            )
        elif blocked.timed and (holder := find_gil_holder(memory, blocked.address)):
            facts["gil"] = holder
        elif tid := self._python(pid)[0].get(blocked.address):
            facts["join"] = tid
        else:
            if is_python_lock(self._read(pid, blocked.address - MALLOC_HEAD, 32) or b""):
                facts["python_lock"] = True
            if deep and not blocked.timed and self._searches < _SEARCHES:
                self._searches += 1
                facts["rlock"] = find_rlock_owner(memory, blocked.address, self._maps(pid))
        return key, []

    def _process_of(self, pid: int, tid: int) -> int:
        """Of a thread that another process's lock names; 0 where that counts them in a namespace of its own."""
        if not same_namespace("pid", pid, self._proc):
            return 0
        return int(colon_fields(read_text(f"{self._proc}/{tid}/status")).get("Tgid", "0"))

    def names(self, pid: int) -> dict[int, str]:
        """Of Python's threads, by id. Asked only of processes in which a thread waits for something without an
        owner: the interpreter has to be found first."""
        return self._pythons[pid][1] if pid in self._pythons else {}

    def _python(self, pid: int) -> tuple[dict[int, int], dict[int, str]]:
        if pid not in self._pythons:
            self._pythons[pid] = {}, {}
            try:
                stacks = ProcessStacks(pid, Path(self._proc))
            except (Unsupported, Torn, Gone, OSError):
                return self._pythons[pid]
            try:
                self._pythons[pid] = stacks.joins(1.0)
            except (Torn, Gone, TimeoutError):
                pass
            finally:
                stacks.close()
        return self._pythons[pid]

    def _maps(self, pid: int) -> list[str]:
        return read_text(f"{self._proc}/{pid}/maps").splitlines()

    def libraries(self, pid: int) -> list[str]:
        """Packages with native code that the process has loaded."""
        found = (_PACKAGE.search(line) for line in self._maps(pid))
        return sorted({one[1] for one in found if one})[:_LIBRARIES]

    def _mapping(self, pid: int, address: int) -> tuple[str, list[Any]]:
        """The name of what is mapped there, and where that is for whoever has it: [device:inode, offset]."""
        for line in self._maps(pid):
            fields = line.split(maxsplit=5)
            low, _, high = fields[0].partition("-")
            if int(low, 16) <= address < int(high, 16):
                name = fields[5] if len(fields) > 5 else ""
                offset = int(fields[2], 16) + address - int(low, 16)
                return name, [f"{fields[3]} {fields[4]}", offset] if fields[4] != "0" else []
        return "", []

    def _sharers(self, pid: int, mapped: str) -> list[int]:
        """Other processes that have it mapped too, of those that this one has started or was started with. A process has
        thousands of mappings: each is looked through once, and not all of a large machine's."""
        found = []
        for one in self._near(pid):
            if one not in self._mapped:
                began = time.monotonic()
                if self._looking_seconds <= 0:
                    break
                lines = (line.split(maxsplit=5) for line in self._maps(one))
                # what another process can have as well is mapped shared
                self._mapped[one] = {f"{row[3]} {row[4]}" for row in lines if row[1].endswith("s")}
                self._looking_seconds -= time.monotonic() - began
            if mapped in self._mapped[one]:
                found.append(one)
        return found[:_SHARERS]

    def _near(self, pid: int) -> list[int]:
        root = Path(self._proc)
        above = read_process(pid, self._proc)
        parent = above.parent if above is not None else 0
        family = descendants(pid, root)
        siblings = descendants(parent, root) if parent > 1 else ()
        return [one for one in dict.fromkeys((*family, parent, *siblings)) if one not in (0, 1, pid)]


def _file(facts: dict[str, Any]) -> tuple[str, int]:
    """Its device and inode; empty where the kernel does not say."""
    return str((facts.get("mount") or {}).get("device", "")), int(facts.get("ino", 0))
