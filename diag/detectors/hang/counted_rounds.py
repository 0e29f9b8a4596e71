"""How often ranks have made the calls of a loop that some have left, by the numbers of their calls: who has made as many in each
round, and who has not, and is behind or ahead of them since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diag.detectors.hang.counted_calls import round_of
from diag.detectors.hang.partings import head_of, parted_in, path_of
from diag.detectors.hang.verdict import Note, Verdict, format_who, others
from diag.model import Confidence, numbered
from diag.model.observations import Block, CallSequence, Frame
from diag.state.collective_fronts import Front
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

_LEAST_ROUNDS = 20  # ours: a number of calls is rarely by chance a multiple of so many
_MOST_RANKS = 64


def with_counted_rounds(verdict: Verdict, job: JobView) -> Verdict:
    """Of ranks that have left a loop in which others still wait in one of its calls. Those inside have begun as many calls in each
    round so far; it is the first loop that makes any, in the first round of all that are around it."""
    front = verdict.collectives.front if verdict.collectives is not None else None
    if verdict.cause != "left_the_loop" or front is None or len(verdict.everyone) > _MOST_RANKS:
        return verdict
    left, inside = job.ranks.known(verdict.culprits), job.ranks.known(verdict.waiting)
    if not left or not inside or len(left) + len(inside) < len(verdict.everyone):
        return verdict
    pairs = [
        _rounds(one, other, job)
        for one, other in ((left[0], inside[0]), *((left[0], one) for one in inside[1:]))
    ]
    pairs += [_rounds(one, inside[0], job) for one in left[1:]]
    found = next((one for one in pairs if one is not None), None)
    if found is None or any(one != found for one in pairs):
        return verdict
    loop, frame, gone, begun = found
    made = {_begun(front, rank) for rank in inside}
    before = {_begun(front, rank) for rank in left}
    lines = {line for rank in inside for line in _lines(front, rank)}
    lines |= {line for rank in left for line in _lines(front, rank, but=1)}
    if len(made) != 1 or len(lines) != 1 or before != {front.seq} or None in made:
        return verdict
    whole, done = made.pop() or 0, front.seq - 1
    each, rest = divmod(whole, begun)
    if rest or not each or done % gone == 0 or begun < _LEAST_ROUNDS:
        return verdict
    missing = gone * each - done
    cwd = job.run.cwd
    place = lines.pop()
    where = f" ({format_path(place.file, cwd)}:{place.line})" if place is not None else ""
    times = numbered(f"{each} [time|times]", each)
    words = (
        f"{format_who(verdict.waiting, '[has|have]')} begun a call{where} {times} in each of {begun} rounds of "
        f"{head_of(loop, frame.file, cwd)}, and {format_who(verdict.culprits, '[has|have]')} made {done} in {gone} rounds, "
        f"{abs(missing)} {'fewer' if missing > 0 else 'more'} than as often in each"
    )
    everyone = tuple(sorted(verdict.everyone))
    return replace(
        verdict, cause="call_left_out" if missing > 0 else "call_added", confidence=Confidence.MEDIUM, words=words, parted=False,
        asked=None, origin="", reason=None, waiting=others(everyone, verdict.culprits),
    ).noted(Note("flight_recorder", words))  # fmt: skip


def _rounds(left: RankView, inside: RankView, job: JobView) -> tuple[Block, Frame, int, int] | None:
    """The loop that the one has left, and the how-manyth round each was in last."""
    forked = parted_in(inside, left)
    if forked is None:
        return None
    here, there = path_of(inside.judged)[forked], path_of(left.judged)[forked]
    ours, theirs = job.program.at(here), job.program.at(there)
    if ours is None or theirs is None:
        return None
    around = {block.line for block in theirs.around}
    loops = [block for block in ours.around if block.is_loop]
    inner = [block for block in loops if block.line not in around]
    if len(inner) != 1 or there.line <= inner[0].last:
        return None
    begun, gone = round_of(inner[0], inside, here, job), round_of(inner[0], left, there, job)
    outer = [(block, here) for block in loops if block.line in around]
    outer += _loops(path_of(inside.judged)[:forked], job)
    first = all(round_of(block, rank, frame, job) == 1 for block, frame in outer for rank in (inside, left))
    return (inner[0], here, gone, begun) if first and begun and gone else None


def _loops(frames: Sequence[Frame], job: JobView) -> Iterator[tuple[Block, Frame]]:
    for frame in frames:
        place = job.program.at(frame)
        for block in place.around if place is not None else ():
            if block.is_loop:
                yield block, frame


def _group(front: Front, rank: RankView) -> CallSequence | None:
    groups = rank.calls.groups if rank.calls is not None else ()
    return next((one for one in groups if (one.backend, one.name) == (front.backend, front.group)), None)


def _begun(front: Front, rank: RankView) -> int | None:
    group = _group(front, rank)
    return group.calls[-1][0] if group is not None and group.calls else None


def _lines(front: Front, rank: RankView, but: int = 0) -> set[Frame | None]:
    """The innermost of the program's own that made a call of those that are kept, without so many of the last; None where that
    is not known."""
    group = _group(front, rank)
    if group is None:
        return set()
    kinds = [kind for _, kind in group.calls[: len(group.calls) - but]]
    if not group.stacks:
        return {None} if len({group.kinds[kind].op for kind in kinds}) == 1 else set()
    found: set[Frame | None] = set()
    for kind in {*kinds}:
        own = own_frames(group.stacks[kind])
        found.add(own[-1] if own else None)
    return found
