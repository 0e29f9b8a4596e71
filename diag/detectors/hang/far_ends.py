"""What the processes do that are no ranks, and for which a rank waits: a server, a helper, a program that it has started.
Where each is in its own code, by its stack, the program's text and the values that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diag.detectors.hang.event_loop import of_tasks
from diag.detectors.hang.loops import PASSED, growing, passes_its_end
from diag.detectors.hang.outcries import Outcry
from diag.detectors.hang.own_logs import BEGIN
from diag.detectors.hang.partings import path_of
from diag.detectors.hang.raised import format_raised, handled_in
from diag.detectors.hang.reasons import loop_at, loop_words
from diag.detectors.hang.variables import in_words, is_same_function, read_by, values_of
from diag.detectors.hang.verdict import Verdict
from diag.model.observations import Block, Frame, FrameVariables, ProgramPlace, ThreadStack
from diag.model.observations.waits import ProcessWaits, ThreadWait
from diag.state.own_code import is_same_file, own_frames
from diag.state.python_waits import is_in_event_loop
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.state.wait_chain import Chain
from diag.text.units import format_seconds

_MOST = 2  # processes of which it is said: the first, and the last
_COMPUTES_RATIO = 0.5  # of a core
_LONGEST_LINE = 80
_MOST_VALUES = 2
_OF_PYTHON = ("thread", "process", "traceback")  # kinds of outcries
_CRIED_SECONDS = 600.0  # same as of a log
_LATE_SECONDS = 15.0  # a stack may have been seen to be new so long after the call was made
_PLACE_IS_SAID = ("child_computes",)  # kinds of causes whose sentence has the place of the child


@dataclass(frozen=True, slots=True)
class _Far:
    process: ProcessWaits
    thread: ThreadStack
    computes: bool


def with_far_ends(verdict: Verdict, outcries: Iterable[Outcry], job: JobView) -> Verdict:
    """Unchanged where none of them is a Python process whose stack was read."""
    heard = [one for one in outcries if one.kind in _OF_PYTHON and one.frames]
    rank = verdict.culprit(job)
    chain = verdict.chain
    if rank is None or chain is None:
        return verdict
    clauses = []
    for far in _far_ends(verdict, rank, chain, job):
        text, origin = _told(far, rank, job)
        clauses.append(text)
        if (cried := _cried_out(far, heard, verdict, job)) is not None:
            clauses.append(_printed(far, cried, verdict, job))
            origin = origin or BEGIN
        if origin and not verdict.origin:
            verdict = replace(verdict, origin=origin)
    return replace(verdict, words=", and ".join(filter(None, (verdict.words, *clauses))))


def _cried_out(far: _Far, heard: Sequence[Outcry], verdict: Verdict, job: JobView) -> Outcry | None:
    """The last that the output has of it from before the rank stood still: through a file of its own in which it is now, and
    in which no rank is."""
    theirs = {frame.file for frame in own_frames(far.thread.frames)}
    ranks = {
        frame.file
        for rank in job.alive_ranks()
        for thread in (rank.stack.threads if rank.stack is not None else ())
        for frame in own_frames(thread.frames)
    }
    for one in reversed(heard):
        own = own_frames(one.frames)
        if not own or not verdict.since - _CRIED_SECONDS <= one.at <= verdict.since + _LATE_SECONDS:
            continue
        in_it = any(is_same_file(own[0].file, file) for file in theirs)
        if in_it and not any(is_same_file(frame.file, file) for frame in own for file in ranks):
            return one
    return None


def _printed(far: _Far, one: Outcry, verdict: Verdict, job: JobView) -> str:
    """ "the program of pid 912 printed "KeyError: 'x'", raised in handle (server.py:31), 4 s before the rank stopped moving"."""
    place = format_frame(own_frames(one.frames)[-1], job.run.cwd)
    ago = format_seconds(max(0.0, verdict.since - one.at))
    pid = far.process.pid
    return f'the program of pid {pid} printed "{one.error}", raised in {place}, {ago} before the rank stopped moving'


def _far_ends(verdict: Verdict, rank: RankView, chain: Chain, job: JobView) -> list[_Far]:
    ranks = {one.placement.pid for one in job.alive_ranks() if one.placement.host == rank.placement.host}
    found: dict[int, _Far] = {}
    for process, wait in _on_the_way(rank, chain):
        of_rank = process.pid in ranks or f"pid {process.pid} is in " in verdict.words
        told = verdict.is_of(*_PLACE_IS_SAID) and process.pid == chain.last.process.pid
        thread = rank.thread_stack(process.pid, wait.tid)
        if of_rank or told or process.pid == verdict.blamed_child or thread is None or not thread.frames:
            continue
        found.setdefault(process.pid, _Far(process, thread, wait.wait.kind == "running"))
    every = list(found.values())
    return every if len(every) <= _MOST else [every[0], every[-1]]


def _on_the_way(rank: RankView, chain: Chain) -> Iterator[tuple[ProcessWaits, ThreadWait]]:
    for step in chain.steps:
        yield step.process, step.thread
    last = chain.last.wait
    process = rank.process_waits(*last.pids) if len(last.pids) == 1 else None
    if chain.end in ("outside", "several") and process is not None:
        one = _only_one_at_work(process) or _event_loop_of(rank, process)
        if one is not None:
            yield process, one


def _event_loop_of(rank: RankView, process: ProcessWaits) -> ThreadWait | None:
    main = rank.thread_stack(process.pid, process.pid)
    return process.thread() if main is not None and is_in_event_loop(main) else None


def _only_one_at_work(process: ProcessWaits) -> ThreadWait | None:
    """Of a server with several threads, of which the kernel does not say which one is asked."""
    found = [
        one
        for one in process.threads
        if one.wait.kind == "running" or (one.cpu_ratio or 0.0) >= _COMPUTES_RATIO
    ]
    return found[0] if len(found) == 1 and not process.threads_left_out else None


def _told(far: _Far, rank: RankView, job: JobView) -> tuple[str, str]:
    """ "pid 912 is in generate and goes round in the loop `while left != 0:` (server.py:34), `left` was -9 when read", and
    what the advice begins with."""
    cwd = job.run.cwd
    frames = path_of(far.thread)
    inner = far.thread.frames[-1]
    own = frames[-1] if frames else inner
    looped = loop_at(frames, job.program) if far.computes else None
    if looped is not None:
        return _in_loop(far, rank, looped, job)
    text = f"pid {far.process.pid} is in {format_frame(own, cwd)}"
    if own != inner and not far.computes:
        text += f", inside {format_frame(inner, cwd)}"
    place = job.program.at(own)
    if place is not None and len(place.text) <= _LONGEST_LINE:
        text += f", at `{place.text}`"
    frame = _read_of(far, rank, own, job)
    values = values_of(frame) if frame is not None else {}
    shown = _when_read(read_by(values, [place.text]) if place is not None else (), values)
    read = job.program.variables(rank.rank, far.process.pid)
    caught = handled_in(read, far.thread) if read is not None else None
    if caught is not None:
        shown = ", ".join(filter(None, (shown, f"in the handler of {format_raised(caught, cwd)}")))
    tasks = of_tasks(read, cwd) if read is not None and is_in_event_loop(far.thread) else ""
    return ", ".join(filter(None, (text, shown, tasks))), ""


def _in_loop(far: _Far, rank: RankView, looped: tuple[ProgramPlace, Block], job: JobView) -> tuple[str, str]:
    place, loop = looped
    words = loop_words(place, loop, job.run.cwd)
    clauses = [f"pid {far.process.pid} is in {place.function} and goes round in the loop {words}"]
    frame = _read_of(far, rank, Frame(place.function, place.file, place.line), job)
    if frame is None:
        return clauses[0], ""
    first = job.program.first_variables(rank.rank, far.process.pid, frame)
    now, before = values_of(frame), values_of(first) if first is not None else {}
    ways = [leave.under.text for leave in place.leaves if leave.loop in (0, loop.line)]
    passed = passes_its_end(loop, now, before)
    names = [name for name in read_by(now, [loop.text, *ways]) if not passed.startswith(f"`{name}` ")]
    clauses += [_when_read(names, now), passed or growing(now, before)]
    return ", ".join(filter(None, clauses)), PASSED if passed else ""


def _read_of(far: _Far, rank: RankView, frame: Frame, job: JobView) -> FrameVariables | None:
    read = job.program.variables(rank.rank, far.process.pid)
    there = [one for one in read.frames if is_same_function(one, frame)] if read is not None else []
    of_thread = [one for one in there if one.thread_id == far.thread.thread_id]
    return of_thread[-1] if of_thread else None


def _when_read(names: Sequence[str], values: Mapping[str, str]) -> str:
    *first, last = in_words(names, values, names)[:_MOST_VALUES] or [""]
    return f"{', '.join(first)}{' and ' if first else ''}{last} when read" if last else ""
