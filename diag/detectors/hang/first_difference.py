"""Where the ranks' calls of a group were first not the same, where that was before the one in which it came to light."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.conditions import outcome
from diag.detectors.hang.partings import head_of
from diag.detectors.hang.verdict import Note, Verdict, format_who, others
from diag.model import Confidence, numbered
from diag.model.observations import Block, Frame
from diag.state.calls_apart import ApartCall, CallsApart, parted
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

# Of a wait of all for each other, which may come of it as well.
_ALL = ("all_ranks_wait",)
_BLOCKS = ("if", "elif", "else", "except", "while", "for")
_LONGEST = 60  # characters of a statement


def with_first_difference(verdict: Verdict, job: JobView) -> Verdict:
    if not (verdict.is_of("calls", "unlike_calls") or verdict.cause in _ALL):
        return verdict
    apart = job.ranks.calls_apart()
    if apart is None or _is_that_call(apart, verdict):
        return verdict
    everyone = tuple(sorted({*verdict.everyone, *apart.odd.ranks, *apart.rest.ranks}))
    words = _words(apart, job)
    note = Note("flight_recorder", words)
    culprits = apart.odd.ranks if apart.is_known else everyone
    way = (apart.ahead > 0) - (apart.ahead < 0) if apart.is_known else 0
    return replace(
        verdict,
        klass="collective_mismatch",
        cause={1: "call_added", -1: "call_left_out", 0: "calls_apart"}[way],
        culprits=culprits,
        waiting=others(everyone, culprits),
        confidence=Confidence.HIGH if apart.is_known and apart.odd.stack else Confidence.MEDIUM,
        words=words,
        parted=False,
        asked=None,
        reason=None,
        origin="",
        apart="",
    ).noted(note)


def _is_that_call(apart: CallsApart, verdict: Verdict) -> bool:
    """The one that they wait in."""
    front = verdict.collectives.front if verdict.collectives is not None else None
    of_it = front is not None and (front.backend, front.group) == (apart.backend, apart.group)
    return front is not None and of_it and apart.seq >= front.seq


def _words(apart: CallsApart, job: JobView) -> str:
    """ "calls 1-93 of default_pg are the same on ranks 0-1; call 94 was made by rank 1 at `loss.backward()` (train.py:46), under
    `except MemoryError:` (train.py:44) of `loss = model(ids)`, and by rank 0 at `loss.backward()` (train.py:50); since then rank 1
    has made 1 call more"
    """
    name = apart.desc or apart.group
    calls = (
        f"calls {apart.since}-{apart.seq - 1} of {name} are"
        if apart.seq - 1 > apart.since
        else f"call {apart.since} of {name} is"
    )
    same = f"{calls} the same on {format_ranks(apart.ranks)}; " if apart.seq > apart.since else f"of {name}, "
    made = ", and ".join(_made(*pair, job) for pair in ((apart.odd, apart.rest), (apart.rest, apart.odd)))
    return f"{same}call {apart.seq} was made {made}{_since(apart)}"


def _since(apart: CallsApart) -> str:
    if not apart.ahead:
        return ""
    count = abs(apart.ahead)
    calls = numbered(f"{count} [call|calls] {'more' if apart.ahead > 0 else 'fewer'}", count)
    return f"; since then {format_who(apart.odd.ranks, '[has|have]')} made {'at least ' if apart.is_least else ''}{calls}"


def _made(side: ApartCall, other: ApartCall, job: JobView) -> str:
    """ "by rank 1 as broadcast at `evaluate(model)` (train.py:46), in evaluate (metrics.py:12), under `if best:` (train.py:45)" """
    who = format_ranks(side.ranks)
    op = side.call.op if side.call.op != other.call.op or not side.stack else ""
    sizes = " ".join(str(list(size)) for size in (side.call.input_sizes or side.call.output_sizes)[:2])
    if not side.stack:
        return f"by {who} as {op} {sizes}".rstrip()
    at = min(parted(side.stack, other.stack), len(side.stack) - 1)
    frame, inner = side.stack[at], side.stack[-1]
    cwd = job.run.cwd
    text = f"by {who}{' as ' + op if op else ''} at {_at(frame, job)}"
    if inner != frame:
        text += f", in {inner.function} ({format_path(inner.file, cwd)}:{inner.line})"
    block = _block(frame, other.stack[at] if at < len(other.stack) else None, job)
    if block is None:
        return text
    tried = f" of `{block.deciding[0]}`" if block.kind == "except" and block.deciding else ""
    return f"{text}, under {head_of(block, frame.file, cwd)}{tried}{_met(block, frame, side.ranks[0], job)}"


def _met(block: Block, frame: Frame, number: int, job: JobView) -> str:
    """ " (9.0 > 4 when read)": of a condition that still holds by the values of the function in which the rank is."""
    rank = job.ranks.get(number)
    read = job.program.variables(number, rank.placement.pid) if rank is not None else None
    name = frame.function.rpartition(".")[2]
    values = {
        one.name: one.text
        for of in (read.frames if read is not None else ())
        if not of.called and (of.file, of.function.rpartition(".")[2]) == (frame.file, name)
        for one in of.variables
    }
    found = outcome(block.text, values) if block.kind in ("if", "elif") and values else None
    return f" ({found.text} when read)" if found is not None and found.holds else ""


def _at(frame: Frame, job: JobView) -> str:
    where = f"{format_path(frame.file, job.run.cwd)}:{frame.line}"
    place = job.program.at(frame)
    if place is None:
        return f"{where} ({frame.function})"
    text = place.text if len(place.text) <= _LONGEST else place.text[: _LONGEST - 4].rstrip() + " ..."
    return f"`{text}` ({where})"


def _block(frame: Frame, other: Frame | None, job: JobView) -> Block | None:
    """The outermost around the one line that is not around the other, in the function where their ways part."""
    place = job.program.at(frame)
    there = job.program.at(other)
    if place is None or other is None or (other.file, other.function) != (frame.file, frame.function):
        return None
    around = {block.line for block in there.around} if there is not None else None
    blocks = (block for block in reversed(place.around) if block.kind in _BLOCKS)
    return None if around is None else next((block for block in blocks if block.line not in around), None)
