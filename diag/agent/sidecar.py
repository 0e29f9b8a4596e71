"""One process beside each rank: reads its stacks, /proc, limits and exit, and sends records to the hub.

Talks JSON lines: commands on stdin, records on stdout. Ends when the hub closes stdin, so a killed hub leaves
nothing behind. Each source has its own daemon thread: one that hangs does not hold up the others, nor the
exit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diag.agent.memory_sampler import MemoryPeek
from diag.agent.probes import Probe, Probes
from diag.agent.rdma_sampler import RankRdma
from diag.agent.stack_sampler import RankStacks
from diag.launch.runs import is_alive
from diag.sources.collectives import flight_recorder
from diag.sources.host import cgroup, exits, proc, shm
from diag.sources.host.versions import versions

__all__ = ["Sidecar", "main"]

_LIMITS_SECONDS = 60.0
_CHILD_STACK_SECONDS = 6.0  # children are sampled less often than their rank, and only under suspicion
_LONGEST_SOCKET_FOLDER = 80  # a UNIX socket's path has 107 characters, and w.<rank>.<pid>.sock needs up to 27
_COLLECTIVES_AGAIN_SECONDS = 5.0
_COLLECTIVES_SECONDS = 30.0
_MOST_CHILDREN = 16
_DUMP_CHILDREN = 64
_RECORDER_SECONDS = 1.5  # in a dump; a server that answers does so in some milliseconds
_PIPE_SECONDS = 10.0  # twice what the dump of torch's pipe took on an H200 machine
_MOST_DUMPS = 4  # at once: those that the kernel holds up leave their threads behind


class Sidecar:
    """Samples one rank until it is gone or the hub is."""

    def __init__(self, task: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self.rank = int(task["rank"])
        self.pid = int(task["pid"])
        self.start_ticks = int(task["start_ticks"])
        self.run_dir = Path(task["run_dir"]) if task.get("run_dir") else None
        self.signal = int(task.get("stack_signal") or 0)
        self.stack_seconds = float(task["stack_seconds"])
        self.close_stack_seconds = float(task["close_stack_seconds"])
        self.proc_seconds = float(task["proc_seconds"])
        self.node_seconds = float(task["node_seconds"])
        self._send = send
        self._host = socket.gethostname()
        self._wake = threading.Condition()
        self._closer = False
        self._dumps = 0
        self._gone = threading.Event()
        self.stacks = RankStacks(
            self.pid,
            self.run_dir,
            self.signal,
            self.record,
            self._erred,
            self._gone,
            start_ticks=self.start_ticks,
        )
        self.rdma = RankRdma(self.pid, self.start_ticks, self.record, self._gone)
        self._failing: dict[str, str] = {}
        self._recorder_stuck = False
        self._by_pipe = False
        self._reader: proc.ProcessReader | None = None
        self._reader_lock = threading.Lock()
        self._cgroup: cgroup.CgroupReader | None = None
        self._cgroup_lock = threading.Lock()
        self._watches_memory = False
        self._look_now = False
        self._children: list[tuple[int, str]] = []
        self._versions: dict[str, str] = {}

    # -- threads ------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """False when there is nothing to watch: started anew beside a rank that has ended, whose pid may be
        another's by now."""
        if not is_alive(self.pid, self.start_ticks):
            payload = exits.ExitWatch(self.pid, self.start_ticks).wait(0)
            if payload is not None:
                self.record(exits.SOURCE, payload)
                self._gone.set()
                return False
        for work in (
            self._watch_exit,
            self._sample_proc,
            self._sample_stacks,
            self._sample_collectives,
            self._sample_rdma,
            self._peek_at_memory,
        ):
            threading.Thread(target=self._guard, args=(work,), name=work.__name__, daemon=True).start()
        return True

    def command(self, order: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for what is no order. Dumps have threads of their own: the
        others may be held up when one comes."""
        if "mode" in order:
            with self._wake:
                self._closer = order["mode"] == "closer"
                self._wake.notify_all()
        if "memory" in order:
            with self._wake:
                self._watches_memory = bool(order["memory"])
                self._wake.notify_all()
        for name, work in (("dump", self._dump), ("native", self._native)):
            if name in order:
                until = time.monotonic() + float(order["deadline"])
                threading.Thread(target=work, args=(str(order[name]), until), name=name, daemon=True).start()

    def _guard(self, work: Callable[[], None]) -> None:
        """A bug in one source must not silence the others: it is told, and that source is over."""
        try:
            work()
        except Exception as error:  # the outermost frame of a thread: the alternative is silence
            self.failed(
                work.__name__.strip("_"), f"bug in diag: {type(error).__name__}: {error}", "report it, please"
            )

    # -- talking ------------------------------------------------------------------------------------------

    def record(self, source: str, payload: Any, seconds: float | None = None) -> None:
        message: dict[str, Any] = {
            "source": source,
            "payload": payload,
            "rank": self.rank,
            "host": self._host,
            "emitted": time.time(),
            "at": 0,
        }
        if seconds is not None:
            message["took"] = round(seconds, 6)
        self._send(message)

    def _erred(self, source: str, word: str) -> None:
        self._send({"error": [source, word]})

    def failed(self, source: str, reason: str, remedy: str = "") -> None:
        """Say that a source cannot look, once for each reason."""
        if self._failing.get(source) != reason:
            self._failing[source] = reason
            self.record("run", {"event": "failed", "source": source, "reason": reason, "remedy": remedy})
        else:
            self._send({"error": [source, "again"]})

    def works(self, source: str) -> None:
        if self._failing.pop(source, None) is not None:
            self.record("run", {"event": "works", "source": source})

    # -- exit ---------------------------------------------------------------------------------------------

    def _watch_exit(self) -> None:
        watch = exits.ExitWatch(self.pid, self.start_ticks)
        while True:
            payload = watch.wait(timeout=3600.0)
            if payload is not None:
                break
        self._read_cgroup()  # the OOM counter of the moment of death
        self.record(exits.SOURCE, payload)
        self._gone.set()
        with self._wake:
            self._wake.notify_all()

    # -- /proc, cgroup, shm -------------------------------------------------------------------------------

    def _sample_proc(self) -> None:
        try:
            self._reader = proc.ProcessReader(self.pid, start_ticks=self.start_ticks)
        except proc.ProcessGone:
            return
        limits_at = node_at = -1e9
        while not self._gone.is_set():
            now = time.monotonic()
            try:
                if now - limits_at >= _LIMITS_SECONDS:
                    limits_at = now
                    self.record(proc.SOURCE, self._reader.limits())
                self._read_proc(detail=self._closer or now - node_at >= self.node_seconds)
            except proc.ProcessGone:
                return
            if now - node_at >= self.node_seconds:
                node_at = now
                self._read_cgroup()
                self._read_shm()
            elif self._cgroup is not None and self._cgroup.crowded:
                self._read_cgroup()  # what filled it in the last seconds is what one asks after a kill
            self._gone.wait(max(0.05, self.proc_seconds - (time.monotonic() - now)))

    def _read_proc(self, *, detail: bool) -> None:
        assert self._reader is not None
        began = time.monotonic()
        with self._reader_lock:
            payload = self._reader.sample(detail=detail)
        self._children = _child_names(payload)
        self.record(proc.SOURCE, payload, time.monotonic() - began)

    def _read_cgroup(self) -> str:
        """Returns why it could not be read, empty when it was."""
        if not self._cgroup_lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            if self._cgroup is None:
                self._cgroup = cgroup.CgroupReader(self.pid)
            self.record(cgroup.SOURCE, self._cgroup.sample())
            self.works("cgroup")
            return ""
        except OSError as error:
            if not self._gone.is_set():
                self.failed("cgroup", str(error), getattr(error, "remedy", ""))
            return str(error)
        finally:
            self._cgroup_lock.release()

    def _peek_at_memory(self) -> None:
        """For the ranks of this cgroup: readings whenever its memory changes, and a stack where a rise
        begins, to tell a save."""
        peek = MemoryPeek()
        while not self._gone.is_set():
            with self._wake:
                if not self._watches_memory:
                    self._wake.wait(60.0)
                    continue
            told = self._peek()
            if told is not None and peek.due(*told, time.monotonic()):
                self._read_cgroup()
                if peek.surges:
                    with self._wake:
                        self._look_now = True
                        self._wake.notify_all()
            self._gone.wait(peek.seconds)

    def _peek(self) -> tuple[int, int | None] | None:
        if self._cgroup is None or not self._cgroup_lock.acquire(timeout=0.05):
            return None
        try:
            return self._cgroup.needed()
        finally:
            self._cgroup_lock.release()

    def _read_shm(self) -> str:
        try:
            self.record(shm.SOURCE, shm.read(self.pid))
            self.works("shm")
            return ""
        except (OSError, shm.SharedMemoryUnavailable) as error:
            if not self._gone.is_set():
                self.failed("shm", str(error), getattr(error, "remedy", ""))
            return str(error)

    def _sample_rdma(self) -> None:
        self.rdma.watch(lambda: self._closer)

    # -- stacks -------------------------------------------------------------------------------------------

    def _sample_stacks(self) -> None:
        last_children = -1e9
        while not self._gone.is_set():
            began = time.monotonic()
            closer = self._closer
            self._look_now = False
            self.stacks.main(2.0, urgent=closer)
            if closer and began - last_children >= _CHILD_STACK_SECONDS:
                last_children = time.monotonic()
                self.stacks.children(self._children, _MOST_CHILDREN, began + 3.0)
            period = self.close_stack_seconds if self._closer else self.stack_seconds
            with self._wake:
                until = began + period
                while (
                    not self._gone.is_set() and not self._look_now and (left := until - time.monotonic()) > 0
                ):
                    self._wake.wait(left)
                    if self._closer and not closer:  # suspicion begins now, not after the slow period
                        until = min(until, began + self.close_stack_seconds)

    # -- collectives --------------------------------------------------------------------------------------

    def _sample_collectives(self) -> None:
        """Only under suspicion: twice, since one reading cannot tell a hang from a rank one call behind, then
        seldom."""
        asked = 0
        while not self._gone.is_set():
            with self._wake:
                if not self._closer:
                    asked, self._recorder_stuck = 0, False
                    self._wake.wait(5.0)
                    continue
            if not self._recorder_stuck and not (
                self._by_pipe and asked >= 2
            ):  # each question is a line in the job's log
                self._read_collectives(3.0, _PIPE_SECONDS)
                asked += 1
            self._gone.wait(_COLLECTIVES_AGAIN_SECONDS if asked < 2 else _COLLECTIVES_SECONDS)

    def _read_collectives(self, deadline: float, pipe_deadline: float | None = None) -> str:
        """Ask torch's worker server of this rank. Returns why there is nothing, empty when there is."""
        if self.run_dir is None:
            return ""
        began = time.monotonic()
        if flight_recorder.reachable(self.rank, self.pid, self.run_dir):
            self.record("run", {"event": "asked"})
        payload = flight_recorder.read(
            self.rank, self.pid, self.run_dir, deadline, pipe_deadline=pipe_deadline
        )
        self._by_pipe = payload.get("how") == "pipe"
        why = payload.get("failed")
        if why is None:
            self.record(flight_recorder.SOURCE, payload, time.monotonic() - began)
            return ""
        self._send({"error": [flight_recorder.SOURCE, why]})
        if why == "no_socket" and len(str(self.run_dir)) > _LONGEST_SOCKET_FOLDER:
            self.failed(
                "flight_recorder",
                "the path of the run directory is too long for a UNIX socket",
                "choose a shorter place with --run-root DIR",
            )
        # A server that waits for the GIL has a thread less with each question: none more until the suspicion
        # is over.
        self._recorder_stuck = why == "timed_out"
        return (
            "" if why in ("gone", "no_socket") else ": ".join(filter(None, flight_recorder.explain(payload)))
        )

    # -- dump ---------------------------------------------------------------------------------------------

    def _dump(self, name: str, until: float) -> None:
        """Everything about this rank now, each part in time or missing with its reason; none waits for
        another but the children's stacks for their list."""
        began = time.monotonic()
        with self._wake:
            crowded = self._dumps >= _MOST_DUMPS
            self._dumps += not crowded
        if crowded:
            self._dumped(name, began, ["earlier dumps of it have not come back from the kernel"], [])
            return
        probes = Probes(until)
        listed, stack, children = Probe("proc"), Probe("stack"), Probe("child_stacks")
        probes.start((listed, self._probe_proc))
        probes.start(
            (stack, lambda probe: self._probe_stack(probe, probes)),
            (children, lambda probe: self._probe_children(probe, listed, probes)),
        )
        recorder = Probe("flight_recorder")
        probes.start((recorder, lambda probe: self._probe_recorder(probe, probes)))
        probes.start((Probe("rdma_access"), self._probe_rdma))
        probes.start(
            (Probe("cgroup"), self._probe_cgroup),
            (Probe("shm"), self._probe_shm),
            (Probe("versions"), self._probe_versions),
        )
        rows, late = probes.wait()
        missing = [
            f"{what}{probe.reason}"
            for probe, what in ((stack, "no stack: "), (recorder, "no collectives: "), (children, ""))
            if probe.reason
        ]
        missing += [f"{probe} not finished in time" for probe in late]
        if listed.reason and "the process is gone" not in stack.reason:
            missing.append(listed.reason)
        self._dumped(name, began, missing, rows)
        for probe in probes.all:  # daemon threads; nobody waits for this one
            probe.done.wait()
        with self._wake:
            self._dumps -= 1

    def _dumped(self, name: str, began: float, missing: list[str], probes: list[dict[str, Any]]) -> None:
        self._send(
            {
                "dumped": name,
                "rank": self.rank,
                "missing": missing,
                "probes": probes,
                "versions": self._versions,
                "seconds": round(time.monotonic() - began, 4),
            }
        )

    def _probe_proc(self, probe: Probe) -> None:
        try:
            if self._reader is None:  # its thread has only just started
                self._reader = proc.ProcessReader(self.pid, start_ticks=self.start_ticks)
            self._read_proc(detail=True)
            self.record(proc.SOURCE, self._reader.limits())
        except proc.ProcessGone:
            probe.reason = "the process is gone"

    def _probe_stack(self, probe: Probe, probes: Probes) -> None:
        probe.reader, probe.reason = self.stacks.main(min(3.0, probes.left), urgent=True)

    def _probe_children(self, probe: Probe, listed: Probe, probes: Probes) -> None:
        listed.done.wait(probes.left / 2)
        unseen = self.stacks.children(self._children, _DUMP_CHILDREN, probes.until)
        if unseen:
            probe.reason = f"{unseen} child processes not reached in time"

    def _probe_recorder(self, probe: Probe, probes: Probes) -> None:
        if self.run_dir is None or not flight_recorder.reachable(self.rank, self.pid, self.run_dir):
            return  # no torch, or not initialised yet: nothing is missing
        if _is_stopped(self.pid):  # its answer would come when it goes on, to nobody
            probe.reason = "the process is stopped (state T) and cannot answer"
        elif self._recorder_stuck:
            probe.reason = (
                "its worker server did not answer an earlier question, and is not asked again for now"
            )
        else:
            probe.reason = self._read_collectives(min(_RECORDER_SECONDS, probes.left), probes.left)

    def _probe_cgroup(self, probe: Probe) -> None:
        probe.reason = self._read_cgroup()

    def _probe_rdma(self, probe: Probe) -> None:
        probe.reason = self.rdma.read()

    def _probe_shm(self, probe: Probe) -> None:
        probe.reason = self._read_shm()

    def _probe_versions(self, probe: Probe) -> None:
        if self._versions.get("torch"):
            return  # what is loaded stays loaded
        try:
            self._versions = versions(self.pid)
        except OSError as error:
            probe.reason = f"its memory map cannot be read: {error.strerror}"

    def _native(self, name: str, until: float) -> None:
        """Native frames too, by py-spy, which stops the rank meanwhile: only when a person asked for it."""
        began = time.monotonic()
        payload = self.stacks.native(max(0.05, until - began))
        self._send(
            {
                "dumped": name,
                "rank": self.rank,
                "native": payload,
                "seconds": round(time.monotonic() - began, 4),
            }
        )


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _child_names(payload: Any) -> list[tuple[int, str]]:
    """Pid and name of the children in a proc payload; Python ones cannot be told from others by it."""
    names = []
    for child in payload["children"]:
        stat = child.get("stat") or ""
        head, _, _ = stat.rpartition(")")
        pid, _, comm = head.partition(" (")
        if pid.isdigit():
            names.append((int(pid), comm))
    return names


def main(argv: list[str]) -> int:
    """Entry point of the sidecar process: `python -m diag.agent.sidecar TASK_JSON`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())  # the hub blocks the signals it forwards
    _be_humble()
    out, lock = sys.stdout.buffer, threading.Lock()

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"
        try:
            with lock:
                out.write(data)
                out.flush()
        except OSError:
            os._exit(0)  # the hub is gone, and so is our purpose

    sidecar = Sidecar(json.loads(argv[0]), send)
    if not sidecar.start():
        os._exit(0)
    for line in sys.stdin.buffer:
        try:
            sidecar.command(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a torn line: the hub died while writing; EOF follows
    os._exit(0)  # a source thread may hang in the kernel; nothing of ours needs tidying


def _be_humble() -> None:
    """Step back for the job: lower priority, and first in line should the node run out of memory."""
    try:
        os.nice(5)
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        pass  # a sandbox that forbids it: it stays as it is


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
