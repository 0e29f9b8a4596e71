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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from diag.agent.memory_sampler import MemorySampler
from diag.agent.probes import Probe, Probes
from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.agent.samplers.rank_process import (
    ChildExitSampler,
    ExitSampler,
    ProcessSampler,
    RdmaSampler,
    WrittenSampler,
)
from diag.agent.samplers.rank_suspicion import CollectivesSampler, WaitSampler
from diag.agent.samplers.rank_variables import VariableSampler
from diag.agent.samplers.sampler import Reporter
from diag.agent.samplers.software import SoftwareSampler
from diag.agent.stack_sampler import StackSampler
from diag.launch.malloc import use_few_heaps
from diag.launch.runs import is_alive
from diag.model import Payload, Record
from diag.sources.host import exits, proc
from diag.sources.host.process_tree import read_process
from diag.sources.host.versions import versions
from diag.sources.waits.inventory import Inventory

_DUMP_CHILDREN = 64
_INVENTORY_CHILDREN = 16  # whose /proc is read too; 10 ms each
_RECORDER_SECONDS = 1.5  # in a dump; a server that answers does so in some milliseconds
_MOST_DUMPS = 4  # at once: those that the kernel holds up leave their threads behind
_WAITS_OVER_SECONDS = 0.2  # of a dump: what did not change meanwhile waits

T = TypeVar("T", bound=RankSampler)

RANK_SAMPLERS: tuple[type[RankSampler], ...] = (
    ExitSampler,
    ChildExitSampler,
    ProcessSampler,
    StackSampler,
    WrittenSampler,
    WaitSampler,
    VariableSampler,
    CollectivesSampler,
    RdmaSampler,
    MemorySampler,
    SoftwareSampler,
)


class _ToHub(Reporter):
    """What is read goes to the hub as lines of JSON."""

    def __init__(self, rank: int, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(
            lambda record: self.record(record.source, record.payload),
            socket.gethostname(),
            rank,
            erred=lambda source, reason: send({"error": [source, reason]}),
        )
        self._send = send

    def record(self, source: str, payload: Payload, seconds: float | None = None) -> None:
        message = Record(source, payload, self.rank, self.host, time.time()).to_json()
        if seconds is not None:
            message["took"] = round(seconds, 6)
        self._send(message)


class Sidecar:
    """Samples one rank until it is gone or the hub is."""

    def __init__(self, task: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self.reporter = _ToHub(int(task["rank"]), send)
        self.rank = RankContext(task, self.reporter)
        self._samplers = [kind(self.rank) for kind in RANK_SAMPLERS]
        self._send = send
        self._dumps = 0
        self._lock = threading.Lock()
        self._versions: dict[str, str] = {}

    def __getitem__(self, kind: type[T]) -> T:
        return next(one for one in self._samplers if isinstance(one, kind))

    def start(self) -> bool:
        """False when there is nothing to watch: started anew beside a rank that has ended, whose pid may be
        another's by now."""
        rank = self.rank
        if not is_alive(rank.pid, rank.start_ticks):
            payload = exits.ExitWatch(rank.pid, rank.start_ticks).wait(0)
            if payload is not None:
                self.reporter.record(exits.SOURCE, payload)
                rank.end()
                return False
        for sampler in self._samplers:
            sampler.start()
        return True

    def command(self, order: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for what is no order. Dumps have threads of their own: the
        others may be held up when one comes."""
        if "mode" in order:
            self.rank.closer = order["mode"] == "closer"
            self.rank.wake("closer")
        if "memory" in order:
            self.rank.watches_memory = bool(order["memory"])
            self.rank.wake("memory")
        if "other_ranks" in order:
            self.rank.other_ranks = frozenset(map(int, order["other_ranks"]))
        for name, work in (("dump", self._dump), ("native", self._native)):
            if name in order:
                until = time.monotonic() + float(order["deadline"])
                words = (str(order[name]), until, order.get("deep") is True)
                threading.Thread(target=work, args=words, name=name, daemon=True).start()

    # -- dump ---------------------------------------------------------------------------------------------

    def _dump(self, name: str, until: float, deep: bool) -> None:
        """Everything about this rank now, each part in time or missing with its reason; none waits for
        another but what is read of children for their list. `deep`: it holds the job up, so that its children count."""
        began = time.monotonic()
        with self._lock:
            crowded = self._dumps >= _MOST_DUMPS
            self._dumps += not crowded
        if crowded:
            missing = ["earlier dumps of it have not come back from the kernel"]
            self._answer(name, began, missing=missing, probes=[], versions=self._versions)
            return
        probes, memory = Probes(until), self.rank.memory
        listed = Probe("proc", self._read_process)
        stack = Probe("stack", lambda: self._read_stack(stack, probes))
        children = Probe("child_stacks", lambda: self._read_children(listed, probes))
        recorder = Probe("flight_recorder", lambda: self._ask_recorder(probes))
        probes.start(listed)
        probes.start(stack, children)
        probes.start(recorder)
        probes.start(Probe("rdma_access", self[RdmaSampler].read_access))
        if self.rank.reads_variables:
            probes.start(Probe("variables", self[VariableSampler].read_variables))
        probes.start(Probe("waits", lambda: self[WaitSampler].read_waits(_WAITS_OVER_SECONDS)))
        probes.start(
            Probe("cgroup", memory.read_cgroup),
            Probe("shm", memory.read_shm),
            Probe("versions", self._read_versions),
        )
        inventory = Inventory()
        for part, read in (("open_files", inventory.read_kernel), ("memory_map", inventory.read_map)):
            probes.start(
                Probe(part, partial(read, self.rank.pid)),
                *([Probe(f"child_{part}", partial(self._of_children, read, listed, probes))] if deep else ()),
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
        processes = inventory.rows(late)
        self._answer(name, began, missing=missing, probes=rows, versions=self._versions, processes=processes)
        for probe in probes.all:  # on daemon threads, as this one is
            probe.done.wait()
        with self._lock:
            self._dumps -= 1

    def _answer(self, name: str, began: float, **parts: Any) -> None:
        seconds = round(time.monotonic() - began, 4)
        self._send({"dumped": name, "rank": self.rank.number, **parts, "seconds": seconds})

    def _read_process(self) -> str:
        try:
            self[ProcessSampler].read_process(limits=True, detail=True)
        except proc.ProcessGone:
            return "the process is gone"
        return ""

    def _read_stack(self, probe: Probe, probes: Probes) -> str:
        probe.reader, reason = self[StackSampler].stacks.main(min(3.0, probes.left), urgent=True)
        return reason

    def _read_children(self, listed: Probe, probes: Probes) -> str:
        listed.done.wait(probes.left / 2)
        unseen = self[StackSampler].stacks.children(
            self.rank.by_turns(self.rank.children), _DUMP_CHILDREN, probes.until
        )
        return f"{unseen} child processes not reached in time" if unseen else ""

    def _of_children(self, read: Callable[[int], str], listed: Probe, probes: Probes) -> str:
        listed.done.wait(probes.left / 2)
        for pid, _ in self.rank.children[:_INVENTORY_CHILDREN]:
            read(pid)
        more = len(self.rank.children) - _INVENTORY_CHILDREN
        return f"{more} more children were not read" if more > 0 else ""

    def _ask_recorder(self, probes: Probes) -> str:
        recorder = self[CollectivesSampler]
        if not recorder.is_there:
            return ""
        process = read_process(self.rank.pid)
        if process is not None and process.state in "Tt":  # its answer would come when it goes on, too late
            return "the process is stopped (state T) and cannot answer"
        if recorder.is_late:
            return "its worker server has not answered an earlier question yet"
        return recorder.ask(min(_RECORDER_SECONDS, probes.left), probes.left)

    def _read_versions(self) -> str:
        if self._versions.get("torch"):
            return ""  # what is loaded stays loaded
        try:
            self._versions = versions(self.rank.pid)
        except OSError as error:
            return f"its memory map cannot be read: {error.strerror}"
        return ""

    def _native(self, name: str, until: float, deep: bool) -> None:
        """Native frames too, by py-spy, which stops the rank meanwhile: only when a person asked for it."""
        began = time.monotonic()
        self._answer(name, began, native=self[StackSampler].stacks.native(max(0.05, until - began)))


def main(argv: list[str]) -> int:
    """Entry point of the sidecar process: `python -m diag.agent.sidecar TASK_JSON`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())  # the hub blocks the signals it forwards
    _be_humble()
    use_few_heaps()
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
