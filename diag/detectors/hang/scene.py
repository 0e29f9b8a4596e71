"""What surrounds a wait that does not end: the threads of its process and what each waits for in Python, whoever is
left that could end it, and which processes have ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from diag.detectors.hang.ended_words import format_end
from diag.detectors.hang.kernel_waits import job_around, lasting_wait
from diag.detectors.hang.raised import format_kept
from diag.detectors.hang.verdict import Verdict
from diag.model.observations import ThreadStack
from diag.model.observations.waits import ProcessWaits
from diag.state.enders import Enders, find_enders
from diag.state.own_code import own_frames
from diag.state.python_waits import PythonWait, waits_of
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.state.wait_chain import Chain, Step
from diag.text.units import format_seconds

_ENDED_SECONDS = 600.0  # before the silence: what it left behind may have been enough for so long
_SAMPLES_SECONDS = 5.0  # between two stacks: a thread was last seen so long before it was missed
# As the reader of variables writes one.
_EXCEPTION = re.compile(r"<(?P<name>\w+): (?P<text>.*)>", re.DOTALL)
_HELPERS = ("_handle_workers", "multiprocessing/pool.py")  # looks every 0.1 s whether its threads live


@dataclass(frozen=True, slots=True)
class Endless:
    """`proven`: nobody is left who could end it. `chain`: whether what the kernel shows is to be reported too. `tids`:
    whose stacks show it."""

    cause: str
    words: str = ""
    proven: bool = False
    chain: bool = True
    tids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scene:
    """`chain`: what the culprit waits for; `process`: that in which the last of it is."""

    verdict: Verdict
    rank: RankView
    job: JobView
    chain: Chain

    @property
    def last(self) -> Step:
        return self.chain.last

    @property
    def leads_on(self) -> bool:
        """From the culprit's own wait to somebody else's."""
        return len(self.chain.steps) > 1

    @property
    def process(self) -> ProcessWaits:
        return self.chain.last.process

    @property
    def cwd(self) -> str:
        return self.job.run.cwd

    @cached_property
    def threads(self) -> dict[int, ThreadStack]:
        sample = self.rank.sample(self.process.pid)
        return {one.thread_id: one for one in sample.threads} if sample is not None else {}

    @cached_property
    def waits(self) -> dict[int, PythonWait]:
        return dict(waits_of(self.rank.sample(self.process.pid)))

    @property
    def wait(self) -> PythonWait | None:
        """Of the last one."""
        return self.waits.get(self.last.thread.tid)

    def others_in(self, *kinds: str) -> list[int]:
        """The other threads of the process that wait so, without a limit of time."""
        tids = [tid for tid, one in self.waits.items() if one.kind in kinds and tid != self.last.thread.tid]
        return [
            tid for tid in tids if (thread := self.process.thread(tid)) is not None and not thread.wait.timed
        ]

    @cached_property
    def found(self) -> Enders | None:
        job = job_around(self.rank, self.verdict.since, self.job)
        return find_enders(self.rank, self.chain, self.verdict.since, job)

    @property
    def nobody(self) -> bool:
        """No thread of the process, and no process below it, is left that could end the wait, nor does the time."""
        wait, found = self.last.wait, self.found
        if wait.timed or self.chain.behind is not None:
            return False
        if wait.dead_end == "alone":
            return True
        if found is None or not found.whole or found.chains or found.at_work or found.asking:
            return False
        return all(self._is_helper(step) for step in found.wakes)

    def _is_helper(self, step: Step) -> bool:
        thread = self.threads.get(step.thread.tid) if step.process is self.process else None
        frames = thread.frames if thread is not None else ()
        return any(
            frame.function.endswith(_HELPERS[0]) and frame.file.endswith(_HELPERS[1]) for frame in frames
        )

    def may_act(self, step: Step) -> bool:
        """Whether another thread of Python's of that process could use a pipe at which this one waits: one that runs code
        of the program's own, and does not wait for a lock, for good."""
        sample = self.rank.sample(step.process.pid)
        if sample is None or step.process.threads_left_out:
            return len(step.process.threads) > 1
        for one in sample.threads:
            thread = step.process.thread(one.thread_id)
            if one.thread_id == step.thread.tid or not own_frames(one.frames):
                continue
            if (
                thread is None
                or thread.wait.timed
                or thread.wait.kind not in ("condition", "mutex", "join", "ended")
            ):
                return True
        return False

    def family(self) -> Iterator[ProcessWaits]:
        """The rank and all below it."""
        read = self.rank.waits
        yield from (one for one in read.processes if one.job) if read is not None else ()

    def is_below(self, pid: int, above: int) -> bool:
        read = self.rank.waits
        seen = {pid}
        while read is not None and (process := read.process(pid)) is not None:
            pid = process.parent
            if pid == above:
                return True
            if pid in seen:
                break
            seen.add(pid)
        return False

    # -- as words

    def name(self, tid: int) -> str:
        if tid == self.process.pid:
            whose = "its" if self.process.pid == self.rank.placement.pid else f"pid {tid}'s"
            return f"{whose} main thread"
        known = self.threads.get(tid)
        thread = self.process.thread(tid)
        name = (known.name if known is not None else "") or (thread.name if thread is not None else "")
        return f"thread {name or '?'} (tid {tid})"

    def at(self, tid: int) -> str:
        """ "Queue.get, in Notifier._work (notify.py:25)"."""
        return format_wait_of(self.waits[tid], self.cwd)

    def ended_child(self) -> str:
        """The last of its children that ended, where that was not long before it stood still: "its child process pid 7
        ended 3 s before it stopped moving"."""
        since, comm = self.verdict.since, self.rank.tree.main.comm if self.rank.tree is not None else ""
        ended = [
            (at, pid)
            for at, pid, name in self.rank.ended_children
            if at >= since - _ENDED_SECONDS and (name == comm or pid in self.rank.child_stacks)
        ]
        if not ended:
            return ""
        at, pid = ended[-1]
        return f"its child process pid {pid} ended{format_end(self.rank, pid, at)} {_when(at, since)}"

    def ended_thread(self) -> str:
        """The last of the rank's own threads that ended, where that was the only one of late: "its thread prefetch ended 7 s
        before it stopped moving". Of several that come and go none is the one."""
        if self.process.pid != self.rank.placement.pid:
            return ""
        since, alive = self.verdict.since, {one.name for one in self.threads.values()}
        ended = [(at, name) for at, name in self.rank.ended_threads if at >= since - _ENDED_SECONDS]
        names = {name for _, name in ended}
        if len(ended) != 1 or not names - {""} or names & alive:
            return ""
        at, name = ended[-1]
        close = abs(since - at) < _SAMPLES_SECONDS
        return f"its thread {name} ended {'about when it stopped moving' if close else _when(at, since)}"

    def kept_exception(self) -> str:
        """What an object keeps whose method waits: "`self.error` keeps the exception JSONDecodeError: Expecting value, raised
        in Reader.load (reader.py:31)"."""
        read = self.job.program.variables(self.rank.rank, self.process.pid)
        own = self.wait.own if self.wait is not None else None
        for frame in read.frames if read is not None and own is not None else ():
            place = (frame.thread_id, frame.file, frame.function)
            if own is None or frame.called or place != (self.last.thread.tid, own.file, own.function):
                continue
            if (kept := next((one for one in frame.raised if "." in one.name), None)) is not None:
                return format_kept(kept, self.cwd)
            for one in frame.variables:  # as earlier versions recorded it
                found = _EXCEPTION.fullmatch(one.text)
                if found is not None and "." in one.name:
                    said = f": {found['text']}" if found["text"] else ""
                    return f"`{one.name}` keeps the exception {found['name']}{said}"
        return ""


def _when(at: float, since: float) -> str:
    when = "before it stopped moving" if at <= since else "after it had stopped moving"
    return f"{format_seconds(abs(since - at))} {when}"


def format_wait_of(wait: PythonWait, cwd: str) -> str:
    place = f", in {format_frame(wait.own, cwd)}" if wait.own is not None else ""
    return wait.inner.function.rpartition("<locals>.")[2] + place


def scene_of(verdict: Verdict, job: JobView) -> Scene | None:
    """Of the first culprit, or the child of it that is to blame; None where the kernel was not asked what it waits
    for, or it has moved since."""
    rank = verdict.culprit(job)
    if rank is None:
        return None
    chain = verdict.chain or lasting_wait(rank, verdict.since, job, verdict.blamed_child or 0)
    if chain is None or not (chain.behind or chain).steps[0].thread.same:
        return None
    return Scene(verdict, rank, job, chain)
