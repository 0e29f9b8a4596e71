"""Who could end a wait that names nobody: a lock of Python's, a condition, an event loop. By what every other thread
of that process, and every process below it, waits for itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from diag.model.observations.waits import ProcessWaits, Wait, WaitsRead
from diag.state.idle import asks_for_work
from diag.state.rank_view import RankView
from diag.state.wait_chain import Chain, OfJob, Step, follow_from

_NAMES_NOBODY = ("condition", "semaphore", "poll")  # of `Wait.kind`
_OF_ITS_OWN = ("condition", "semaphore", "mutex", "gil", "join", "child", "vfork")
_RPC = "torch/distributed/rpc/"
_LISTENS = ("tcp_accept", "signal", "io_uring")
_ANSWERS = ("tcp_receive", "unix_receive", "pipe_read")
_SELF_MADE = ("anon_inode:[eventfd]",)
_THREAD_CPU_RATIO = 0.2  # one that measures now and then takes less
# Of a process whose result is awaited. One that waits takes less than a thousandth, and one whose steps are short
# sleeps and some computing between takes one or two hundredths of a core.
_CHILD_CPU_RATIO = 0.005
_PROGRAM_CPU_RATIO = 0.2  # of one that is no Python process: a service that also measures takes less
_LATE_SECONDS = (
    60.0  # a queue takes a while to run empty: what was silent long before it is not what is waited for
)


@dataclass(frozen=True, slots=True)
class Enders:
    """`chains`: of those that wait for somebody else than for each other. `at_work`: they compute, or sleep for a
    moment between. `wakes`: they look again from time to time. `asking`: children that wait for work, while a
    thread waits for what they make of it. `passive`: threads of the process that wait for one of all these."""

    chains: tuple[Chain, ...] = ()
    at_work: tuple[Step, ...] = ()
    wakes: tuple[Step, ...] = ()
    asking: tuple[Step, ...] = ()
    passive: tuple[Step, ...] = ()
    whole: bool = True  # all of them may be read

    @property
    def nobody(self) -> bool:
        return self.whole and not (self.chains or self.at_work or self.wakes)


def find_enders(rank: RankView, chain: Chain, since: float, job: OfJob) -> Enders | None:
    """None where the chain ends at somebody who is known, or the Python threads of its last process are not."""
    read, last = rank.waits, chain.last
    if read is None or last.wait.kind not in _NAMES_NOBODY or last.wait.others or last.wait.dead_end:
        return None
    if chain.end not in ("no_owner", "several", "outside") or not last.process.job:
        return None
    threads = _python_threads(rank, last.process.pid)
    if last.thread.tid not in threads or (last.wait.kind == "poll" and not last.wait.watched):
        return None
    return _Family(rank, read, last, threads).enders(since, job)


def _python_threads(rank: RankView, pid: int) -> frozenset[int]:
    sample = rank.sample(pid)
    return frozenset(thread.thread_id for thread in sample.threads) if sample is not None else frozenset()


def _runs_calls_of_others(rank: RankView) -> bool:
    """In threads that torch's RPC agent starts for them (1.8-2.13): what they will do, no thread that is there shows."""
    threads = rank.stack.threads if rank.stack is not None else ()
    return any(_RPC in frame.file for thread in threads for frame in thread.frames)


class _Family:
    """A process in which a thread waits, and those below it."""

    def __init__(self, rank: RankView, read: WaitsRead, waiter: Step, threads: frozenset[int]) -> None:
        self._rank = rank
        self._read = read
        self._waiter = waiter
        self._own = [
            Step(waiter.process, one)
            for one in waiter.process.threads
            if one.tid in threads and one.tid != waiter.thread.tid
        ]
        self._below = list(_below(read, waiter.process.pid))
        self._pids = {waiter.process.pid, *(one.pid for one in self._below)}
        self._awaited = self._find_awaited()

    def enders(self, since: float, job: OfJob) -> Enders:
        read_before = self._rank.waits_at - since + _LATE_SECONDS
        found: dict[str, list[Step]] = {}
        for step in (*self._own, *self._watched()):
            found.setdefault(self._state(step, read_before), []).append(step)
        below: dict[str, list[Step]] = {}
        for step in self._of_children():
            below.setdefault(self._state(step, read_before), []).append(step)
        sleep = below.pop("wakes", [])
        # Those that compute a little between short sleeps are found at either.
        at_work = [*below.get("at work", ()), *(sleep if below.get("at work") else ())]
        outside = [*found.get("outside", ()), *below.get("outside", ()), *(() if at_work else sleep)]
        asking = self._asking()
        outside += self._in_a_lock(below.get("passive", []), (*outside, *at_work, *asking))
        return Enders(
            tuple(self._to_outside(follow_from(self._read, step, job)) for step in outside),
            (*found.get("at work", ()), *at_work),
            tuple(found.get("wakes", ())),
            tuple(asking),
            tuple(found.get("passive", ())),
            not (
                self._waiter.process.threads_left_out
                or "unknown" in found
                or "unknown" in below
                or _runs_calls_of_others(self._rank)
                or self._is_shared_beyond()
            ),
        )

    def _is_shared_beyond(self) -> bool:
        """The lock lies in memory that others have too, who are not of the family."""
        shared = self._waiter.wait.shared
        return shared is not None and any(other.pid not in self._pids for other in shared.by)

    def _watched(self) -> Iterator[Step]:
        """What an event loop waits for, each as if it were all."""
        thread = self._waiter.thread
        for one in thread.wait.watched if thread.wait.kind == "poll" else ():
            yield Step(self._waiter.process, replace(thread, wait=replace(one, call=thread.wait.call)))

    def _find_awaited(self) -> set[int]:
        """The children that a Python thread of the process waits to hear from."""
        waits = [self._waiter.wait, *(step.wait for step in self._own)]
        parties = [other for wait in waits for one in (wait, *wait.watched) for other in one.others]
        return {other.pid for other in parties} & self._pids - {self._waiter.process.pid}

    def _of_children(self) -> list[Step]:
        """The threads that count of each: Python's, where they are known. Where some are waited for, the others
        have nothing to do with it."""
        nobody_named = self._waiter.wait.kind == "semaphore"  # which any of them may hold
        everyone = nobody_named or not self._awaited
        chosen = [
            one for one in self._below if everyone or not {one.pid, one.parent}.isdisjoint(self._awaited)
        ]
        steps = []
        for process in chosen:
            threads = _python_threads(self._rank, process.pid) or {process.pid}
            steps += [Step(process, one) for one in process.threads if one.tid in threads]
        return steps

    def _in_a_lock(self, passive: list[Step], others: Iterable[Step]) -> list[Step]:
        """Children with a lock of their own to wait for, and no thread that could end that: they will not answer."""
        known = {step.process.pid for step in others}
        return [step for step in passive if step.wait.kind == "condition" and step.process.pid not in known]

    def _asking(self) -> list[Step]:
        """All that are waited for, where all wait for work, some at the lock of a queue for another one."""
        processes = [one for one in self._below if one.pid in self._awaited]
        steps = [Step(one, thread) for one in processes if (thread := one.thread()) is not None]
        pid = self._waiter.process.pid
        asking = [step for step in steps if asks_for_work(step.process, step.wait, pid)]
        every = asking and all(step in asking or step.wait.kind == "semaphore" for step in steps)
        return steps if every and len(steps) == len(self._awaited) else []

    def _computes(self, step: Step) -> bool:
        if step.thread.cpu_ratio is None:
            return step.wait.kind == "running"
        least = _THREAD_CPU_RATIO
        if step.process is not self._waiter.process:
            is_python = step.process.pid in self._rank.child_stacks
            least = _CHILD_CPU_RATIO if is_python and self._awaited else _PROGRAM_CPU_RATIO
        return step.wait.kind == "running" or step.thread.cpu_ratio >= least

    def _state(self, step: Step, read_before: float) -> str:
        own = step.process is self._waiter.process
        if self._computes(step):
            return "at work"
        state = self._of_wait(step.wait)
        if state == "outside" and (step.wait.silent_seconds or 0.0) > read_before:
            return "listens"
        if state not in ("outside", "passive"):
            return state
        return state if step.thread.same or not own else "wakes"

    def _of_wait(self, wait: Wait) -> str:
        """passive: one of the family has to end it; listens: it gives nobody an answer before somebody comes."""
        if wait.dead_end:
            return "passive" if wait.dead_end == "only_self" else "outside"
        if wait.kind in ("unreadable", "exiting"):
            return "unknown"
        if wait.kind == "ended" or wait.kind in _LISTENS or wait.call.startswith("accept"):
            return "listens"
        if wait.kind == "gil" or (wait.kind == "other" and wait.path in _SELF_MADE):
            return "passive"
        if (
            wait.timed and wait.kind != "condition"
        ):  # whoever waits for a word, and looks up at times, waits for it
            return "wakes"
        if wait.kind == "poll":
            return self._of_watched(wait)
        if wait.others:
            return "passive" if self._pids & wait.pids else "outside"
        return "passive" if wait.kind in _OF_ITS_OWN else "outside"

    def _of_watched(self, wait: Wait) -> str:
        states = {self._of_wait(one) for one in wait.watched} or {"unknown"}
        return next((one for one in ("outside", "unknown", "wakes") if one in states), "passive")

    def _to_outside(self, chain: Chain) -> Chain:
        """Cut where it would come back to the family by way of a process's main thread: any of that one's may be who
        does not answer."""
        for at, step in enumerate(chain.steps[1:], 1):
            if (
                step.process.pid == self._waiter.process.pid
                and chain.steps[at - 1].process.pid not in self._pids
            ):
                left = next(n for n, one in enumerate(chain.steps) if one.process.pid not in self._pids)
                return Chain(chain.steps[: max(1, left)], "outside")
        return chain


def _below(read: WaitsRead, pid: int) -> Iterator[ProcessWaits]:
    for process in read.processes:
        if process.parent == pid and process.job:
            yield process
            yield from _below(read, process.pid)


def _whom(chain: Chain) -> object:
    """The same of threads that wait for an answer of one process, and of processes that were forked without the thread that
    they wait for: then it does not matter which of them it is."""
    if chain.end == "dead_end" and chain.last.wait.forked:
        return "forked"
    first = chain.steps[0].wait
    return (first.kind, *first.pids) if first.kind in _ANSWERS and len(first.pids) == 1 else id(chain)


def whole_chain(chain: Chain, found: Enders | None) -> Chain:
    """Past a wait that names nobody, where one alone is left who could end it, or several that wait for one process. What
    an event loop waits for alone is certain, else it is only probable."""
    if found is None or found.at_work or len({_whom(one) for one in found.chains}) != 1:
        return chain
    beyond = found.chains[0]
    first, last = beyond.steps[0], chain.last
    if (first.process.pid, first.thread.tid) != (last.process.pid, last.thread.tid):
        return replace(beyond, behind=chain)
    certain = found.whole and not found.wakes
    return replace(beyond, steps=(*chain.steps[:-1], *beyond.steps)) if certain else chain
