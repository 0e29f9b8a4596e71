"""How a sidecar reads the stacks of its rank and of the rank's children: by whatever may look and costs
least."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.launch.runs import is_alive
from diag.model import Payload
from diag.sources.host.process_tree import read_text, split_stat
from diag.sources.stacks import faulthandler, pyspy, remote_stack

# A signal interrupts a sleeping system call of the rank: seldom while it is healthy.
_SIGNAL_SECONDS = 60.0
_CHILD_STACK_SECONDS = 6.0  # children are sampled less often than their rank, and only under suspicion
_MOST_CHILDREN = 16
_MOST_STRANGERS = 4
# Ours: a disk's answer takes less, and a thread that waits for it can be stopped then.
_IN_KERNEL_SECONDS, _IN_KERNEL_PAUSE = 1.0, 0.05
_MISSES_REPORTED = 3  # of 300 py-spy dumps of a busy loop 8 fail or are torn: three in a row are no accident


class StackSampler(RankSampler):
    """Seldom while the rank is calm; its children's under suspicion only."""

    name = what = "stacks"
    sources = (remote_stack.SOURCE, pyspy.SOURCE, faulthandler.SOURCE)
    woken_by = ("closer", "surge")

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self.stacks = RankStacks(rank)
        self._children_at = -1e9

    def sample(self) -> None:
        rank, began = self.rank, time.monotonic()
        self.stacks.main(2.0, urgent=rank.closer)
        if rank.closer and began - self._children_at >= _CHILD_STACK_SECONDS:
            self._children_at = time.monotonic()
            self.stacks.children(rank.by_turns(rank.children), _MOST_CHILDREN, began + 3.0)
            self.stacks.strangers(rank.strangers_by_turns(_MOST_STRANGERS), began + 4.0)

    def period(self, cpu: float, wall: float) -> float:
        return self.rank.close_stack_seconds if self.rank.closer else self.rank.stack_seconds


class RankStacks:
    """For several threads. A process that was given the rank's pid differs from it by its start, and is not
    read."""

    def __init__(self, rank: RankContext) -> None:
        self.memory = remote_stack.RemoteStacks()
        self.pyspy = pyspy.PySpy()
        self._pid, self._run_dir, self._signal = rank.pid, rank.run_dir, rank.signal
        self._start_ticks = rank.start_ticks
        self._record, self._erred = rank.reporter.record, rank.reporter.erred
        self._gone, self._stops = rank.gone, rank.stops
        self._misses = 0
        self._signalled_at = -1e9
        self._strangers: tuple[int, ...] = ()
        self._no_python: dict[int, int] = {}  # children: how often py-spy found no Python in them

    def main(self, deadline: float, *, urgent: bool) -> tuple[str, str]:
        """From the process's memory; by py-spy, where that fails; by the rank's own faulthandler, where
        neither may look. Returns which of them gave a stack, and, where none did, why."""
        began = time.monotonic()
        if not self._is_rank():
            return "", "the process is gone"
        payload = self.memory.dump(self._pid, deadline / 2)
        if not self._is_rank():  # ended meanwhile: what was read may be another's
            return "", "the process is gone"
        if "failed" not in payload:
            self._misses = 0
            self._record(remote_stack.SOURCE, payload, time.monotonic() - began)
            return remote_stack.SOURCE, ""
        self._erred(remote_stack.SOURCE, payload["failed"])
        if payload["failed"] == "gone":
            return "", "the process is gone"
        if payload["failed"] == "timed_out":  # py-spy would hang in the same lock of the kernel
            self._misses += 1
            if self._misses >= _MISSES_REPORTED:
                self._record(remote_stack.SOURCE, payload)
            return "", ": ".join(filter(None, remote_stack.explain(payload)))
        again = time.monotonic()
        payload = self.pyspy.dump(self._pid, max(0.05, began + deadline - again))
        why = payload.get("failed")
        if why is None and self._is_rank():
            self._misses = 0
            self._record(pyspy.SOURCE, payload, time.monotonic() - again)
            return pyspy.SOURCE, ""
        why = why or "gone"
        self._erred(pyspy.SOURCE, why)
        self._misses += 1
        reason = ": ".join(filter(None, pyspy.explain(payload)))
        if why == "gone" or self._gone.is_set() or not self._is_rank():
            return "", "the process is gone"
        if why not in ("denied", "not_found") and self._misses < _MISSES_REPORTED:
            return "", reason  # torn, or the machine is busy: the next sample is soon
        self._record(pyspy.SOURCE, payload)
        if not urgent and began - self._signalled_at < _SIGNAL_SECONDS:
            return "", reason
        self._signalled_at = began
        return (faulthandler.SOURCE, "") if self._by_signal(self._pid, None, deadline) else ("", reason)

    def native(self, deadline: float) -> Payload:
        """By py-spy, which stops the rank meanwhile. Not where a thread cannot be stopped now: the others would stand
        until py-spy is given up."""
        if not self._is_rank():
            return {"pid": self._pid, "failed": "gone", "stderr": ""}
        began = time.monotonic()
        while in_kernel := _in_kernel(self._pid):
            if time.monotonic() - began > min(_IN_KERNEL_SECONDS, deadline / 2):
                name = f"thread {in_kernel[0]} is in the kernel (state D), where it cannot be stopped"
                return {"pid": self._pid, "failed": "in_kernel", "stderr": name}
            self._gone.wait(_IN_KERNEL_PAUSE)
        with self._stops.stopping(deadline / 2) as may:
            if not may:
                busy = "an earlier reading has not come back from the kernel"
                return {"pid": self._pid, "failed": "failed", "stderr": busy}
            return self.pyspy.dump(self._pid, max(0.05, began + deadline - time.monotonic()), native=True)

    def _is_rank(self) -> bool:
        return is_alive(self._pid, self._start_ticks)

    def _by_signal(self, pid: int, parent: int | None, deadline: float) -> bool:
        """The in-rank hook's faulthandler, where ptrace is denied."""
        if self._run_dir is None or not self._signal:
            return False
        began = time.monotonic()
        payload = faulthandler.dump(pid, self._run_dir, self._signal, min(deadline, 1.0), parent_pid=parent)
        self._record(faulthandler.SOURCE, payload, time.monotonic() - began)
        if "failed" in payload:
            self._erred(faulthandler.SOURCE, payload["failed"])
            return False
        return True

    def children(self, children: Sequence[tuple[int, str]], most: int, until: float) -> int:
        """Stacks of Python children, in this order. Returns how many were not reached in time."""
        if not self._is_rank():
            return 0  # whose children these were
        for index, (pid, _) in enumerate(children[:most]):
            now = time.monotonic()
            if now >= until or self._gone.is_set():
                return len(children) - index
            self._child_stack(pid, min(1.0, until - now))
        alive = {pid for pid, _ in children}
        self.memory.keep_only({self._pid, *alive, *self._strangers})
        self._no_python = {pid: count for pid, count in self._no_python.items() if pid in alive}
        return max(0, len(children) - most)

    def strangers(self, processes: Sequence[tuple[int, int]], until: float) -> None:
        """Of processes (pid, start in ticks) that are none of the job's, and that the rank waits for: by their memory
        alone, which neither stops them nor lets them know."""
        self._strangers = tuple(pid for pid, _ in processes)
        for pid, start_ticks in processes:
            began = time.monotonic()
            if began >= until or self._gone.is_set() or not self._is_rank():
                return
            if not is_alive(pid, start_ticks):
                continue
            payload = self.memory.dump(pid, min(1.0, until - began), parent_pid=self._pid)
            if "failed" not in payload and is_alive(pid, start_ticks):  # what was read may be another's
                self._record(remote_stack.SOURCE, payload, time.monotonic() - began)

    def _child_stack(self, pid: int, deadline: float) -> None:
        if self._no_python.get(pid, 0) >= _MISSES_REPORTED:
            return  # a compiler: not a py-spy process for it each time
        began = time.monotonic()
        payload = self.memory.dump(pid, deadline, parent_pid=self._pid)
        if "failed" not in payload:
            self._record(remote_stack.SOURCE, payload, time.monotonic() - began)
            return
        if payload["failed"] in ("gone", "timed_out"):
            return
        again = time.monotonic()
        payload = self.pyspy.dump(pid, max(0.05, began + deadline - again), parent_pid=self._pid)
        if "failed" not in payload:
            self._record(pyspy.SOURCE, payload, time.monotonic() - again)
        elif payload["failed"] in ("denied", "not_found"):
            self._by_signal(pid, self._pid, deadline)
        elif payload["failed"] == "not_python":
            self._no_python[pid] = self._no_python.get(pid, 0) + 1


def _in_kernel(pid: int) -> list[int]:
    """Threads in state D, which no signal reaches and no tracer stops."""
    found = []
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for tid in tids:
        try:
            _, _, fields = split_stat(read_text(f"/proc/{pid}/task/{tid}/stat"))
        except ValueError:  # it has ended
            continue
        if fields[0] == "D":
            found.append(int(tid))
    return found
