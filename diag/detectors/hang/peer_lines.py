"""What the program's text says of a process of this machine that ranks ask for an answer, where its stack was read: a lock
that one of its threads takes a second time, and the loop in which one waits for what a rank should send."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diag.detectors.hang.own_locks import is_inside, lock_taken
from diag.detectors.hang.partings import head_of
from diag.detectors.hang.verdict import Verdict
from diag.model.observations import FrameVariables, ProgramPlace, ThreadStack
from diag.model.observations.waits import ProcessWaits
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_path

_CAUSES = ("service_is_idle", "both_ends_receive", "both_read", "external_service", "process_is_silent")
_NO_WORK = "children_wait_for_work"
_LOCK_WAITS = ("condition", "mutex", "semaphore")
_RECEIVES = ("tcp_receive", "unix_receive", "pipe_read")
_LONGEST = 60
# Of a file made of a pipe or socket: it returns when it has so many bytes, where recv and os.read return what there is.
_READS_ALL = re.compile(r"(?<!os)\.(?:read|readexactly)\((?P<size>[A-Za-z_][\w.]*|\d+)\)")
_IN_LOOP = re.compile(r"while len\((?P<got>[\w.]+)\) < (?P<size>[\w.]+):")
_REQUEST = re.compile(r"(?:for )?(?P<name>\w+) (?:=|in) ")
_LENGTH = re.compile(r"\.\.\. \((?P<length>\d+)\)$")
ADVICE_OF_LOCK = (
    "The process that was asked has locked itself out, as its text shows: mend it there (take the lock once, further out, or "
    "use RLock). Starting it again helps until it comes there again."
)
ADVICE_OF_ANSWER = (
    "A process that is asked has to answer each request, or the asker waits for ever: send something on the way shown too (an "
    "error, an empty answer), or do not ask it for that; and give the wait for the answer a timeout."
)
ADVICE_OF_LENGTH = (
    "Less came than was announced, or agreed on: announce the number of bytes of what is sent (of the text once it is encoded, "
    "not of its characters or of another form of it), send all of it (sendall, flush), and give the read a timeout."
)


def with_peer_lines(verdict: Verdict, job: JobView) -> Verdict:
    steps = verdict.chain.steps if verdict.chain is not None else ()
    rank = verdict.culprit(job)
    first = steps[0].wait if steps else None
    if rank is None or first is None or verdict.cause not in (*_CAUSES, _NO_WORK):
        return verdict
    if verdict.cause == _NO_WORK or len(first.pids) != 1:
        of_rank = rank.child_stacks if verdict.cause == _NO_WORK else first.pids
        words = _of_several(sorted(of_rank), rank, job)
        return _with(verdict, words, ADVICE_OF_ANSWER) if words else verdict
    process = rank.process_waits(*first.pids)
    sample = rank.sample(process.pid) if process is not None else None
    ranks = {one.placement.pid for one in job.alive_ranks()}
    if process is None or sample is None or process.pid in ranks:
        return verdict
    for thread in sample.threads if not process.job else ():
        if words := _taken_twice(thread, process, job):
            return _with(verdict, words, ADVICE_OF_LOCK)
    asked = [one for one in sample.threads if _awaits(rank, one, process)]
    if words := next(filter(None, (_loop_of(one, process, rank, job) for one in asked)), ""):
        return _with(verdict, words, "")
    if asked and (words := _awaited_length(rank, job)):
        both = f"{_name(asked[0], process)} waits for data from it in turn, and {words}"
        return _with(verdict, both, ADVICE_OF_LENGTH)
    words = next(filter(None, (_unanswered(one, process, rank, job) for one in asked)), "")
    return _with(verdict, words, ADVICE_OF_ANSWER) if words else verdict


def _of_several(pids: Sequence[int], rank: RankView, job: JobView) -> str:
    """Any of which may have had the request, where none of them works at one."""
    found = [(process, rank.sample(pid)) for pid in pids if (process := rank.process_waits(pid)) is not None]
    if len(found) < len(pids) or not all(_rests(process) for process, _ in found):
        return ""
    every = (
        _unanswered(thread, process, rank, job, one_of_many=True)
        for process, sample in found
        for thread in (sample.threads if sample is not None else ())
        if _awaits(rank, thread, process)
    )
    return next(filter(None, every), "")


def _rests(process: ProcessWaits) -> bool:
    main = process.thread()
    return main is not None and main.wait.kind in (*_RECEIVES, *_LOCK_WAITS)


def _awaits(rank: RankView, thread: ThreadStack, process: ProcessWaits) -> bool:
    found = process.thread(thread.thread_id)
    waits = (found.wait, *found.wait.watched) if found is not None else ()
    return any(one.kind in _RECEIVES and rank.placement.pid in one.pids for one in waits)


def _with(verdict: Verdict, words: str, advice: str) -> Verdict:
    joined = ", and ".join(filter(None, (verdict.words, words)))
    return replace(verdict, words=joined, origin=advice or verdict.origin)


def _taken_twice(thread: ThreadStack, process: ProcessWaits, job: JobView) -> str:
    """ "thread up (tid 9) is inside of `with self.lock:` already, in Journal.write (journal.py:20)"."""
    wait = process.thread(thread.thread_id)
    inner = thread.frames[-1] if thread.frames else None
    place = job.program.at(inner)
    lock = lock_taken(inner, place) if inner is not None else ""
    if not lock or place is None or wait is None or wait.wait.kind not in _LOCK_WAITS or wait.wait.timed:
        return ""
    outer = next(
        (frame for frame in reversed(thread.frames[:-1]) if is_inside(job.program.at(frame), place, lock)),
        None,
    )
    if outer is None:
        return ""
    return (
        f"{_name(thread, process)} is inside of `with {lock}:` already, in {format_frame(outer, job.run.cwd)}"
    )


def _loop_of(thread: ThreadStack, process: ProcessWaits, rank: RankView, job: JobView) -> str:
    """The outermost `while` with a condition of values around it, in which that waits."""
    found = [
        (place, block)
        for frame in own_frames(thread.frames)
        if (place := job.program.at(frame)) is not None
        for block in reversed(place.inside)
        if block.kind == "while" and block.deciding and not block.text.startswith("while True")
    ]
    if not found:
        return ""
    place, loop = found[0]
    head = head_of(loop, place.file, job.run.cwd)
    text = f"{_name(thread, process)} is in the loop {head}, whose condition changes by `{loop.deciding[0]}`"
    read = job.program.variables(rank.rank, process.pid)
    frames = [one for one in read.frames if one.thread_id == thread.thread_id] if read is not None else []
    values = _values(place, loop.text, frames)
    return f"{text}, {values} when read" if values else text


def _unanswered(
    thread: ThreadStack, process: ProcessWaits, rank: RankView, job: JobView, *, one_of_many: bool = False
) -> str:
    """ "pid 9's main thread waits for the next request, and `if not line:` (norm.py:7) leads there without its answer,
    `out.write(line)` (norm.py:9), `line` was '' when read"."""
    places = (job.program.at(frame) for frame in reversed(own_frames(thread.frames)))
    place = next((one for one in places if one is not None and one.answer is not None), None)
    if place is None or place.answer is None:
        return ""
    cwd, answer = job.run.cwd, place.answer
    ways = " or ".join(head_of(one, answer.file, cwd) for one in answer.past)
    text = (
        f"{_name(thread, process)} waits for the next request, to which {ways} leads without its answer, "
        f"`{answer.text}` ({format_path(answer.file, cwd)}:{answer.line})"
    )
    read = job.program.variables(rank.rank, process.pid)
    frames = [one for one in read.frames if one.thread_id == thread.thread_id] if read is not None else []
    if one_of_many:
        return text
    asks = _REQUEST.match(place.text)  # what it took last is still there
    heads = [one.text for one in answer.past] + [asks["name"] if asks is not None else ""]
    values = next(filter(None, (_values(place, head, frames) for head in heads)), "")
    return f"{text}; {values} when read" if values else text


def _awaited_length(rank: RankView, job: JobView) -> str:
    """How many bytes the rank's own line waits for, where that is a number that it was told or has."""
    path = own_frames(rank.judged.frames) if rank.judged is not None else []
    place = job.program.at(path[-1]) if path else None
    read = job.program.variables(rank.rank, rank.placement.pid)
    if place is None or read is None:
        return ""
    values = {
        one.name: one.text
        for frame in read.frames
        if not frame.called and (frame.file, frame.function) == (place.file, place.function)
        for one in frame.variables
    }
    if (found := _READS_ALL.search(place.text)) is not None and values.get(found["size"], "").isdecimal():
        return (
            f"`{place.text}` returns once `{found['size']}` bytes have come, {values[found['size']]} when read, "
            "and fewer have"
        )
    for loop in place.inside:
        head = _IN_LOOP.fullmatch(loop.text)
        size = values.get(head["size"], "") if head is not None else ""
        if head is not None and size.isdecimal():
            length = _LENGTH.search(values.get(head["got"], ""))
            had = f"`{head['got']}` had {length['length']} of them when read" if length is not None else ""
            text = f"the loop {head_of(loop, place.file, job.run.cwd)} ends once {size} bytes have come"
            return ", and ".join(filter(None, (text, had)))
    return ""


def _values(place: ProgramPlace, head: str, read: Sequence[FrameVariables]) -> str:
    names = {part for name in re.findall(r"[\w.]+", head) for part in (name, name.rpartition(".")[0])}
    known = [
        f"`{variable.name}` was {variable.text}"
        for frame in read
        if not frame.called and (frame.file, frame.function) == (place.file, place.function)
        for variable in frame.variables
        if variable.name in names and len(variable.text) <= _LONGEST
    ]
    return " and ".join(known[:2])


def _name(thread: ThreadStack, process: ProcessWaits) -> str:
    if thread.thread_id == process.pid:
        return f"pid {process.pid}'s main thread"
    return f"thread {thread.name or '?'} (tid {thread.thread_id})"
