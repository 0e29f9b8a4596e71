"""Which of a rank's threads trains: the main one, unless that waits while another is at the collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from diag.model.observations import StackSample, ThreadStack
from diag.model.observations.waits import WaitsRead
from diag.state.stack_activity import Activity, is_in_lock, read_stack, steps

# Where nobody is but who trains. A main thread may have made the process group for another thread to use.
_SETUP = (Activity.RENDEZVOUS, Activity.COMM_INIT)
_STEPS = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.GPU_SYNC)
# Frames of a step: a module is called, or an optimizer (torch 2.4-2.13).
# So many places in which a thread was found while the main one waited: it works. A heartbeat has two or three.
_PLACES = 4
_EVENTS = ("join", "condition", "semaphore", "poll", "tcp_accept", "signal")  # of `Wait.kind`
_NUMBER = re.compile(r"\d+")
_IMPORTS = "<frozen importlib."
_MODULES, _OPTIMIZERS = "torch/nn/modules/module.py", "torch/optim/"


@dataclass(slots=True)
class Trainer:
    """Of one rank. It stays with the thread that it found: the next sample may show that one anywhere."""

    tid: int = 0  # of the thread, where it is not the main one
    _trained: StackSample | None = field(
        default=None, repr=False
    )  # the last one of a main thread that trains
    _places: dict[int, set[tuple[str, ...]]] = field(default_factory=dict, repr=False)  # of other threads
    _path: tuple[str, ...] = ()  # where the main thread waited when the other was found

    def pick(
        self,
        sample: StackSample,
        waits: WaitsRead | None,
        alike: tuple[str, ...] = (),
        joined_by: tuple[int, ...] = (),
    ) -> ThreadStack | None:
        """The thread to look at in this sample; None where there is none at all. `alike`: the beginning of the thread
        that trains in another rank, which runs the same program. `joined_by`: the one that joined the process group."""
        main = sample.main
        if main is None:
            return None
        if len(sample.threads) == 1 or _is_at_work(main):
            if _is_in_a_step(main) or read_stack(main).activity is Activity.DATA:
                self._trained = sample
                self._places.clear()
            self.tid = 0
            return main
        path = steps(main)
        kept = next((one for one in sample.threads if self.tid and one.thread_id == self.tid), None)
        if kept is not None and (self._trained is None or path == self._path):
            return kept
        found = self._other(sample, main, waits, alike)
        if found is None and self._trained is None:
            found = _first([one for one in sample.threads if one.thread_id in joined_by and one.frames])
        self.tid, self._path = (0, ()) if found is None else (found.thread_id, path)
        return found or main

    def _other(
        self, sample: StackSample, main: ThreadStack, waits: WaitsRead | None, alike: tuple[str, ...]
    ) -> ThreadStack | None:
        joined = _joined(waits, sample.pid)
        threads = [one for one in sample.threads if one is not main and one.frames]
        if self._trained is None:
            # A main thread that was never at a step serves, shows a page or waits: whoever makes the steps trains.
            working = [one for one in threads if _is_at_work(one)]
            found = _first([one for one in working if one.thread_id == joined] or working)
            same = [one for one in threads if alike and beginning(one) == alike]
            if found is None and len(same) == 1:
                return same[0]
            return found or (self._mover(threads) if _awaits_events(main, waits, sample.pid) else None)
        if not is_in_lock(main) or _is_leaving(main):
            return None
        if joined:
            threads = [one for one in threads if one.thread_id == joined]
        # One that waits in a collective all the time, while the main thread trains, is not what that waits for.
        before = {one.thread_id: one.frames for one in self._trained.threads}
        return _first(
            [
                one
                for one in threads
                if read_stack(one).activity in _STEPS and (joined or before.get(one.thread_id) != one.frames)
            ]
        )

    def _mover(self, threads: list[ThreadStack]) -> ThreadStack | None:
        """The only one that was found at ever new places."""
        self._places = {one.thread_id: self._places.get(one.thread_id, set()) for one in threads}
        for one in threads:
            if len(self._places[one.thread_id]) < _PLACES:
                self._places[one.thread_id].add(steps(one))
        moved = [one for one in threads if len(self._places[one.thread_id]) >= _PLACES]
        return moved[0] if len(moved) == 1 else None


def beginning(thread: ThreadStack) -> tuple[str, ...]:
    """By what it differs from other threads of the same program: its name, and where it enters the program."""
    inside = (place for place, frame in enumerate(thread.frames) if not frame.file.endswith("threading.py"))
    frames = thread.frames[: next(inside, 0) + 1]
    return (_NUMBER.sub("#", thread.name), *(f"{frame.function} {frame.file}" for frame in frames))


def _awaits_events(main: ThreadStack, waits: WaitsRead | None, pid: int) -> bool:
    """Others give it something to do, as its frames or the kernel show."""
    thread = waits.thread(pid) if waits is not None else None
    return is_in_lock(main) or (thread is not None and thread.wait.kind in _EVENTS)


def _is_in_a_step(thread: ThreadStack) -> bool:
    if read_stack(thread).activity in _STEPS:
        return True
    # While torch is imported, its own modules stand there.
    imports = any(frame.file.startswith(_IMPORTS) for frame in thread.frames)
    return not imports and any(_OPTIMIZERS in frame.file or _MODULES in frame.file for frame in thread.frames)


def _is_at_work(thread: ThreadStack) -> bool:
    activity = read_stack(thread).activity
    return activity in (*_SETUP, Activity.DATA) or _is_in_a_step(thread)


def _is_leaving(main: ThreadStack) -> bool:
    reading = read_stack(main)
    return Activity.TEARDOWN in (reading.activity, reading.context)


def _first(threads: list[ThreadStack]) -> ThreadStack | None:
    """Of several a thread of Python's: those of the autograd engine call back into Python with no such beginning."""
    threads = [one for one in threads if read_stack(one).activity is not Activity.DATA]
    begun = [one for one in threads if one.frames[0].function.rpartition(".")[2] == "_bootstrap"]
    return min(begun or threads, key=lambda one: one.thread_id, default=None)


def _joined(waits: WaitsRead | None, pid: int) -> int:
    """The thread whose end the main one waits for, as the interpreter's memory shows; 0 where it does not."""
    main = waits.thread(pid) if waits is not None else None
    if main is None or main.wait.kind != "join" or not main.wait.others:
        return 0
    other = main.wait.others[0]
    return other.tid if other.pid == pid else 0
