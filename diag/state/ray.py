"""Ray's processes as they were read last, since when each stands where it is, and who waits for whom among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diag.model.observations import Frame, RayDeath, RayDemand, RayProcess, RaySeen, ThreadStack
from diag.state.own_code import own_frames, package_of
from diag.state.reducer import Reducer, takes
from diag.state.stack_activity import steps
from diag.state.wait_chain import Chain, OfJob, follow

_LOOP = ("main_loop", "ray/_private/worker.py")  # a worker that waits for its next task, ray 2.x
_COMPUTES_RATIO = 0.1  # of a core, of any of its threads: ours
_READINGS = 2  # in a row: Ray's own threads do something now and then
_WORKS = ("computes", "device")  # ends of a chain, see Chain: it may come to an end by itself
_IN_DISK = ("file_io", "page_fault", "memory")


@dataclass(frozen=True, slots=True)
class RayChain:
    """`steps`: each waits in Ray for the next one. `end`: pending (the last one waits for what Ray has not placed), peers
    (several, all in calls among ranks), stands (the last one neither computes nor is it waiting in Ray; `waits`: for
    what, as the kernel shows), works (it may come to an end), or "" where that is not known.

    `demands`: what Ray has not placed. Then the last one may be an actor of coroutines of which no line is seen.
    """

    steps: tuple[RayProcess, ...]
    end: str
    since: float
    demands: tuple[RayDemand, ...] = ()
    waits: Chain | None = None

    @property
    def last(self) -> RayProcess:
        return self.steps[-1]


class Ray(Reducer):
    """Owns what was read of Ray."""

    def __init__(self) -> None:
        self.seen: RaySeen | None = None
        self.at = 0.0
        self.deaths: dict[int, RayDeath] = {}  # by pid
        self._stands: dict[int, tuple[tuple[str, ...], float]] = {}  # where it is, since when
        self._computed: dict[int, int] = {}  # in how many readings, up to the last
        self._pending: tuple[tuple[RayDemand, ...], float] = ((), 0.0)

    @takes(RaySeen)
    def _seen(self, at: float, fact: RaySeen) -> None:
        self.seen, self.at = fact, at
        self.deaths |= {one.pid: one for one in fact.deaths}
        before, self._stands = self._stands, {}
        self._computed = {
            one.pid: self._computed.get(one.pid, 0) + 1 for one in fact.processes if _computes(one)
        }
        for one in fact.processes:
            place = _place(one)
            known = before.get(one.pid)
            stands = known is not None and known[0] == place and not self.computes(one.pid)
            self._stands[one.pid] = place, known[1] if known is not None and stands else at
        if fact.demands != self._pending[0]:
            self._pending = fact.demands, at

    def process(self, pid: int) -> RayProcess | None:
        return next((one for one in self.of_kind("driver", "worker", "service") if one.pid == pid), None)

    def of_kind(self, *kinds: str) -> Iterator[RayProcess]:
        return (one for one in (self.seen.processes if self.seen is not None else ()) if one.kind in kinds)

    def since(self, pid: int) -> float:
        """Since when it is where it is."""
        return self._stands[pid][1] if pid in self._stands else self.at

    def computes(self, pid: int) -> bool:
        """It, or what it has started, ran in each of the last readings, or was in the hands of a disk."""
        return self._computed.get(pid, 0) >= _READINGS

    def chain_of(
        self, first: RayProcess, ranks: Mapping[int, int], joined: Iterable[int] = ()
    ) -> RayChain | None:
        """From one that waits in Ray, a driver or an actor; None where it does not. `ranks`: by pid; `joined`: pids that wait
        for other ranks in a call."""
        if not waits_in_ray(first):
            return None
        left = [one for one in self._at_work() if one.pid not in (first.pid, *joined)]
        inner = [one for one in left if waits_in_ray(one)]
        ends = [one for one in left if not waits_in_ray(one)]
        line = [first, *inner] if len(inner) == 1 else [first]
        unseen = [one for one in ends if _is_unseen(one) and not self.computes(one.pid)]
        if len(unseen) == len(ends) <= 1:
            return self._without_anybody([*line, *unseen], joined)
        if len(ends) > 1:
            return RayChain(tuple(line), "", self._since(line))
        return self._with_end([*line, *ends], ranks)

    def _at_work(self) -> list[RayProcess]:
        return [one for one in self.of_kind("worker") if not between_calls(one)]

    def _without_anybody(self, line: list[RayProcess], joined: Iterable[int]) -> RayChain:
        demands, asked = self._pending
        if not demands:
            return RayChain(tuple(line), "peers" if [*joined] else "", self._since(line))
        return RayChain(tuple(line), "pending", max(self._since(line), asked), demands)

    def _with_end(self, line: list[RayProcess], ranks: Mapping[int, int]) -> RayChain:
        last, since = line[-1], self._since(line)
        thread = at_work(last)
        waits = None
        if last.waits is not None and thread is not None:
            waits = follow(last.waits, last.pid, thread.thread_id, OfJob(ranks))
        links = waits.steps if waits is not None else ()
        asked = {
            last.pid,
            *(one.process.pid for one in links),
            *(pid for one in links for pid in one.wait.pids),
        }
        if waits is None or waits.end in _WORKS or any(map(self.computes, asked)):
            return RayChain(tuple(line), "works", since, waits=waits)
        others = {step.process.pid for step in waits.steps} - {last.pid}
        since = max([since, *(self.since(pid) for pid in others)])
        return RayChain(tuple(line), "stands", since, waits=waits)

    def _since(self, line: Iterable[RayProcess]) -> float:
        return max(self.since(one.pid) for one in line)


def between_calls(process: RayProcess) -> bool:
    """A worker that waits for its next task: by its title, or where that names a function or an actor alone, by its stack."""
    return not process.method and (not process.name or at_work(process) is None)


def in_loop(thread: ThreadStack) -> bool:
    """It waits for its next task, and runs none."""
    last = thread.frames[-1] if thread.frames else None
    return last is not None and last.function.rpartition(".")[2] == _LOOP[0] and last.file.endswith(_LOOP[1])


def at_work(process: RayProcess) -> ThreadStack | None:
    """The thread that runs the task: the main one, or of an actor with threads the first with code of the program."""
    main = process.main
    if main is not None and not in_loop(main):
        return main
    return next((one for one in process.threads if one is not main and own_frames(one.frames)), None)


def waits_in_ray(process: RayProcess) -> bool:
    """It is in a call of Ray's, as ray.get, and not in its loop for tasks."""
    thread = at_work(process)
    return thread is not None and bool(thread.frames) and package_of(thread.frames[-1].file) == "ray"


def _is_unseen(process: RayProcess) -> bool:
    """It runs a method, and none of its threads is in the program: of coroutines that wait nothing is on a stack."""
    return bool(process.method) and process.main is not None and at_work(process) is None


def place_of(process: RayProcess) -> tuple[Frame | None, Frame | None]:
    """The innermost line of the program, and the innermost frame."""
    thread = at_work(process)
    if thread is None or not thread.frames:
        return None, None
    own = own_frames(thread.frames)
    return (own[-1] if own else None), thread.frames[-1]


def _computes(process: RayProcess) -> bool:
    threads = [
        thread
        for one in (process.waits.processes if process.waits is not None else ())
        for thread in (one.threads if one.job else ())
    ]
    return any((one.cpu_ratio or 0.0) > _COMPUTES_RATIO or one.wait.kind in _IN_DISK for one in threads)


def _place(process: RayProcess) -> tuple[str, ...]:
    thread = at_work(process)
    return (process.task, *(steps(thread) if thread is not None else ()))
