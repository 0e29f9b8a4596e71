"""Merged stacks for a terminal: where ranks differ, as a prefix tree; outliers first, the
many after them.

Texts of the job go through `clean` in `text`, which also wraps and cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from diag.outputs.view.classes import StackClass
from diag.state.stack_activity import Activity, format_frame
from diag.text.columns import cut, wrap, wrap_long, wrap_wide
from diag.text.sanitize import clean
from diag.text.units import format_ranks, format_seconds

# Of a kind; a healthy job of thousands of ranks has some hundred, and no reader wants them all.
_RAREST = 30
_LARGEST = 10
_WAITS_FOR_PEERS = frozenset(activity.value for activity in Activity if activity.waits_for_peers)
_MOST_LEVELS = 12  # of indentation; what parts below that is listed side by side
_THREAD_FRAMES = 3  # innermost of threads that do not train; the JSON has all
_SHARED_FRAMES = 3  # innermost of those that a branch has in common; the rest is launcher and trainer


Say = Callable[[str], str]


def class_lines(classes: Iterable[StackClass], room: int, frames: int, say: Say = str) -> list[str]:
    """At most `room` columns each; under the title of a class its innermost `frames` frames, outermost first. `say`
    gives a title in the reader's language."""
    found = list(classes)
    lines = list(_tree([one for one in found if one.kind == "rank"], room, frames, say))
    for kind in dict.fromkeys(one.kind for one in found if one.kind != "rank"):
        kept, rest = _chosen([one for one in found if one.kind == kind])
        for one in kept:
            most = min(frames, _THREAD_FRAMES) if kind == "thread" else frames
            lines += _class(one, 0, 0, room, most, say)
        lines += _rest(rest, room)
    return lines


def _chosen(classes: list[StackClass]) -> tuple[list[StackClass], list[StackClass]]:
    """Those to show, rarest first, and the rest."""
    ordered = sorted(classes, key=lambda one: _apart([one]))
    if len(ordered) <= _RAREST + _LARGEST:
        return ordered, []
    return ordered[:_RAREST] + ordered[-_LARGEST:], ordered[_RAREST:-_LARGEST]


def _apart(classes: Sequence[StackClass]) -> tuple[int, bool, tuple[int, ...]]:
    """What comes first: the few; of as many, those that do not wait for their peers."""
    waits = all(one.activity in _WAITS_FOR_PEERS for one in classes)
    return (sum(one.count for one in classes), waits, classes[0].ranks[:1])


@dataclass(slots=True)
class _Branch:
    """Classes whose paths are the same down to `depth` steps."""

    depth: int
    classes: list[StackClass]
    level: int
    shown: int = 0  # of the steps, those that are printed above already
    ranks: tuple[int, ...] = field(default=())


def _tree(classes: Sequence[StackClass], room: int, frames: int, say: Say) -> Iterator[str]:
    kept, rest = _chosen(list(classes))
    work = [_Branch(0, kept, 0)] if kept else []
    while work:
        branch = work.pop()
        if len(branch.classes) == 1:
            yield from _class(branch.classes[0], branch.level, branch.shown, room, frames, say)
            continue
        depth = _shared(branch.classes, branch.depth)
        level = branch.level
        if depth > branch.shown and level < _MOST_LEVELS:
            yield from _head(branch, depth, room, say)
            branch.shown, level = depth, level + 1
        work += reversed(list(_parts(branch, depth, level)))
    yield from _rest(rest, room)


def _wrapped(text: str, room: int, indent: str, rest: str) -> list[str]:
    return (wrap if text.isascii() else wrap_wide)(text, room, indent, rest)


def _shared(classes: Sequence[StackClass], depth: int) -> int:
    """How many outer steps all have. Classes of one path differ in why their stacks are old."""
    first = classes[0].path
    least = min(len(one.path) for one in classes)
    while depth < least and all(one.path[depth] == first[depth] for one in classes):
        depth += 1
    return depth


def _parts(branch: _Branch, depth: int, level: int) -> Iterator[_Branch]:
    """The branches below, fewest ranks first. Those that end at the fork itself are classes of their own."""
    groups: dict[str, list[StackClass]] = {}
    ends: list[_Branch] = []
    for one in branch.classes:
        if len(one.path) > depth:
            groups.setdefault(one.path[depth], []).append(one)
        else:
            ends.append(_Branch(depth, [one], level, branch.shown))
    found = ends + [_Branch(depth, group, level, branch.shown) for group in groups.values()]
    return iter(sorted(found, key=lambda part: _apart(part.classes)))


def _head(branch: _Branch, depth: int, room: int, say: Say) -> Iterator[str]:
    ranks = tuple(sorted({rank for one in branch.classes for rank in one.ranks}))
    lead = "  " * branch.level
    yield from _wrapped(say(f"{format_ranks(ranks)} share:"), room, lead, lead + "    ")
    yield from _frames(branch.classes[0], branch.shown, depth, lead, room, _SHARED_FRAMES, say)


def _class(  # noqa: PLR0917 - two callers, beside it
    one: StackClass, level: int, shown: int, room: int, frames: int, say: Say
) -> Iterator[str]:
    lead = "  " * level
    yield from _wrapped(say(clean(one.title()) + _standing(one)), room, lead, lead + "    ")
    yield from _frames(one, shown, len(one.frames), lead, room, frames, say)
    if one.waits:
        yield from wrap(clean(f"kernel: {one.waits}"), room, lead + "    ", lead + "      ")


def _frames(  # noqa: PLR0917 - two callers, beside it
    one: StackClass, begin: int, end: int, lead: str, room: int, most: int, say: Say
) -> Iterator[str]:
    hidden = end - begin - most
    if hidden > 0:
        yield cut(lead + "    " + say(f"... {hidden} outer frame{'s' if hidden > 1 else ''}"), room)
    for frame in one.frames[max(begin, end - most) : end]:
        yield from wrap_long(f"{lead}    " + clean(format_frame(frame, one.cwd)), room, lead + "      ")


def _standing(one: StackClass) -> str:
    if one.stands_seconds:
        return f"; unchanged for {format_seconds(round(one.stands_seconds, 1))}"
    if not one.moving:
        return ""
    who = "" if len(one.moving) == len(one.ranks) else f" {format_ranks(one.moving)}"
    below = f" below {clean(one.path[one.standing_steps - 1])}" if one.standing_steps else ""
    return f";{who} moving{below}"


def _rest(classes: Sequence[StackClass], room: int) -> list[str]:
    if not classes:
        return []
    ranks = tuple(sorted({rank for one in classes for rank in one.ranks}))
    return wrap(f"{format_ranks(ranks)}: in {len(classes)} more places (the JSON has them)", room, "", "    ")
