"""Stacks of very many ranks as classes: hashes with one copy of each class, ranges of ranks, one prefix tree.

Pure. A hub reports its ranks to others as `picture(...)`, JSON of hashes and ranges; whoever hears
many of them puts them together with `merge` and reads them as a tree, each node with its ranks and how many
of them move in it. What others sent is not trusted: it is bounded, and a class must have the hash it comes
under.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from diag.model.observations import StackSample, ThreadStack
from diag.state.idle import is_idle_child
from diag.state.rank_view import RankView
from diag.state.stack_activity import child_role, read_stack, steps

Spans = tuple[tuple[int, int], ...]  # first and last rank of each range, in order, none touching another

MOST_RANKS = 1 << 20  # as model.Placement has it: ten times the largest jobs there are
_MOST_TEXT = 8 * MOST_RANKS  # every second rank, written out
# ours: a job has some hundreds; each rank in a place of its own would be no merge any more
_MOST_CLASSES = 1 << 16
_MOST_STEPS = 200  # of one path; deeper ones lose their middle
_LONGEST_STEP = 500
_ROLES = ("main", "thread", "child", "idle")
_DIGITS = re.compile(r"\d+")
_RANGES = re.compile(r"\d{1,7}(?:-\d{1,7})?(?:,\d{1,7}(?:-\d{1,7})?)*", re.ASCII)


# --- ranks as ranges


def parse_spans(text: str) -> Spans:
    """Ranges as `pack_ranks` writes them, in any order, overlapping or not. ValueError for anything else.

    >>> parse_spans("61-143,0-59,60")
    ((0, 143),)
    """
    if len(text) > _MOST_TEXT:
        raise ValueError("too many ranks for one job")
    if not text:
        return ()
    if not _RANGES.fullmatch(text):
        raise ValueError(f"not ranges of ranks: {text[:40]!r}")
    parts = (part.partition("-") for part in text.split(","))
    found = [(int(first), int(last or first)) for first, _, last in parts]
    if any(not first <= last < MOST_RANKS for first, last in found):
        raise ValueError(f"not ranges of ranks: {text[:40]!r}")
    return _joined(found)


def format_spans(spans: Iterable[tuple[int, int]]) -> str:
    """
    >>> format_spans(((0, 59), (61, 61)))
    '0-59,61'
    """
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def spans_of(ranks: Iterable[int]) -> Spans:
    return _joined([(rank, rank) for rank in ranks])


def _joined(spans: list[tuple[int, int]]) -> Spans:
    """In order, with those that overlap or touch made one."""
    spans.sort()
    found: list[tuple[int, int]] = []
    for first, last in spans:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _count(spans: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in spans)


# --- one rank


@dataclass(frozen=True, slots=True)
class StackSite:
    """Where threads stand: the one copy of a class. `role` is main, thread, child or idle (a child that waits
    for work).

    `name` is a thread's name with its numbers left out, or what a child is for; `path` are the steps of
    `stacks.steps`.
    """

    role: str
    name: str
    activity: str
    path: tuple[str, ...]

    @property
    def key(self) -> str:
        """The hash that others know it by: 96 bits, so that a stranger cannot make two classes of one hash."""
        text = json.dumps([self.role, self.name, self.activity, self.path], separators=(",", ":"))
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "name": self.name, "activity": self.activity, "path": list(self.path)}

    @classmethod
    def from_json(cls, data: Any) -> StackSite:
        """Raises KeyError, TypeError or ValueError for what is no class."""
        fields = [data[name] for name in ("role", "name", "activity")]
        path = data["path"]
        if not isinstance(path, list) or len(path) > _MOST_STEPS + 1 or fields[0] not in _ROLES:
            raise ValueError("no class of stacks")
        if not all(isinstance(text, str) and len(text) <= _LONGEST_STEP for text in (*fields, *path)):
            raise ValueError("no class of stacks")
        return cls(fields[0], fields[1], fields[2], tuple(path))


def _place(role: str, name: str, thread: ThreadStack) -> StackSite:
    path = tuple(step[:_LONGEST_STEP] for step in steps(thread))
    if len(path) > _MOST_STEPS:  # a recursion: its ends tell
        half = _MOST_STEPS // 2
        path = (*path[:half], "...", *path[-half:])
    return StackSite(role, name[:_LONGEST_STEP], read_stack(thread).activity.value, path)


def places_of(rank: RankView) -> tuple[StackSite, ...]:
    """All that a living rank's threads and children are at, each once; first the thread that trains, as "main"."""
    found: dict[StackSite, None] = {}
    sample = rank.stack if rank.alive else None
    judged = rank.judged if sample else None
    if judged is not None:
        found[_place("main", "", judged)] = None
    for thread in sample.threads if sample else ():
        if thread is not judged and thread.frames:
            found[_place("thread", _DIGITS.sub("#", thread.name), thread)] = None
    for _, child in living_children(rank):
        role = child_role(child)
        if child.main is not None and not is_idle_child(rank, child):
            found[_place("child", role, child.main)] = None
        else:
            found[StackSite("idle", role, "", ())] = None
    return tuple(found)


def living_children(rank: RankView) -> list[tuple[float, StackSample]]:
    """A child that the last look at the process tree did not show has ended; its stack is history."""
    if not rank.alive:
        return []
    kept = [stack for _, stack in sorted(rank.child_stacks.items())]
    if rank.tree is None:
        return kept
    alive = {child.pid for child in rank.tree.children if child.state not in "ZX"}
    return [(at, sample) for at, sample in kept if sample.pid in alive or at > rank.tree_at]


def digest(places: Iterable[StackSite]) -> str:
    """One hash for all that a rank is at: as long as it stays, there is nothing new to report of that rank."""
    keys = "".join(sorted(place.key for place in places))
    return hashlib.blake2b(keys.encode(), digest_size=12).hexdigest()


def standing_steps(series: Sequence[Sequence[str]]) -> int | None:
    """How many outer steps all samples of a series share; None where one sample is all there is."""
    if len(series) < 2:
        return None
    first = series[0]
    shared = min(map(len, series))
    for path in series:
        if path is first:
            continue
        shared = next((i for i in range(shared) if path[i] != first[i]), shared)
    return shared


# --- many ranks


def picture(ranks: Iterable[RankView], known: Iterable[str] = ()) -> dict[str, Any]:
    """What a hub reports of its ranks: `classes` (one copy of each that the other does not know yet), `ranks`
    of each class, and `moving`: of a class of main threads those ranks whose last samples differ, after the
    steps that they all share."""
    classes: dict[str, StackSite] = {}
    members: dict[str, list[int]] = {}
    moving: dict[str, tuple[int, list[int]]] = {}
    keys: dict[StackSite, str] = {}
    for rank in ranks:
        for place in places_of(rank):
            key = keys.get(place)
            if key is None:
                key = keys[place] = place.key
                classes[key] = place
            members.setdefault(key, []).append(rank.rank)
            if place.role == "main":
                shared = standing_steps(rank.series)
                if shared is not None and shared < len(place.path):
                    depth, who = moving.get(key, (shared, []))
                    moving[key] = (min(depth, shared), [*who, rank.rank])
    there = set(known)
    return _picture(
        {key: place for key, place in classes.items() if key not in there},
        {key: spans_of(who) for key, who in members.items()},
        {key: (depth, spans_of(who)) for key, (depth, who) in moving.items()},
    )


def _picture(
    classes: Mapping[str, StackSite], ranks: Mapping[str, Spans], moving: Mapping[str, tuple[int, Spans]]
) -> dict[str, Any]:
    return {
        "classes": {key: place.to_json() for key, place in classes.items()},
        "ranks": {key: format_spans(spans) for key, spans in ranks.items()},
        "moving": {key: [depth, format_spans(spans)] for key, (depth, spans) in moving.items()},
    }


@dataclass(slots=True)
class Merged:
    """`unknown` are hashes whose class no picture has (ask for them); `bad` counts what was no picture or no
    part of one."""

    classes: dict[str, StackSite] = field(default_factory=dict)
    ranks: dict[str, Spans] = field(default_factory=dict)
    moving: dict[str, tuple[int, Spans]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    bad: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a picture again: what a node reports upwards of many."""
        return _picture(self.classes, self.ranks, self.moving)

    def tree(self, role: str = "main") -> Node:
        """The prefix tree of all classes of one role."""
        parts: list[tuple[Sequence[str], Spans, int | None]] = []
        for key, spans in self.ranks.items():
            place = self.classes.get(key)
            if place is None or place.role != role:
                continue
            depth, movers = self.moving.get(key, (0, ()))
            if movers:
                parts.append((place.path, movers, depth))
            standing = _without(spans, movers)
            if standing:
                parts.append((place.path, standing, None))
        return prefix_tree(parts)


def merge(pictures: Iterable[Any], known: Mapping[str, StackSite] | None = None) -> Merged:
    """Put pictures of many nodes together. Linear in what was sent; whatever is no part of a picture is left
    out and counted."""
    merged = Merged(dict(known or {}))
    gathered: dict[str, list[str]] = {}
    movers: dict[str, list[tuple[int, str]]] = {}
    for each in pictures:
        if not isinstance(each, dict):
            merged.bad += 1
            continue
        _take_classes(each.get("classes"), merged)
        for key, text in _items(each.get("ranks"), merged, lambda item: type(item) is str):
            gathered.setdefault(key, []).append(text)
        for key, (depth, text) in _items(each.get("moving"), merged, _is_of_movers):
            movers.setdefault(key, []).append((max(0, depth), text))
    for key, texts in islice(gathered.items(), _MOST_CLASSES):
        spans = _spans_of_texts(texts, merged)
        if spans:
            merged.ranks[key] = spans
    merged.bad += max(0, len(gathered) - _MOST_CLASSES)
    for key, items in movers.items():
        spans = _spans_of_texts([text for _, text in items], merged) if key in merged.ranks else ()
        if spans:
            merged.moving[key] = (min(depth for depth, _ in items), spans)
    merged.classes = {key: place for key, place in merged.classes.items() if key in merged.ranks}
    merged.unknown = tuple(key for key in merged.ranks if key not in merged.classes)
    return merged


def _is_of_movers(item: Any) -> bool:
    return isinstance(item, list) and list(map(type, item)) == [int, str]


def _items(data: Any, merged: Merged, fits: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """The parts that fit; the others are counted."""
    if data is not None and not isinstance(data, dict):
        merged.bad += 1
    for key, item in data.items() if isinstance(data, dict) else ():
        if fits(item):
            yield key, item
        else:
            merged.bad += 1


def _take_classes(data: Any, merged: Merged) -> None:
    for key, item in _items(data, merged, lambda item: True):
        if key in merged.classes:
            continue
        try:
            place = StackSite.from_json(item)
        except (KeyError, TypeError, ValueError):
            merged.bad += 1
            continue
        if place.key == key and len(merged.classes) < _MOST_CLASSES:
            merged.classes[key] = place
        else:
            merged.bad += 1


def _spans_of_texts(texts: list[str], merged: Merged) -> Spans:
    try:
        if sum(map(len, texts)) <= _MOST_TEXT:
            return parse_spans(",".join(filter(None, texts)))
    except ValueError:
        pass  # one of them is bad: then one by one
    found: list[tuple[int, int]] = []
    for text in texts:
        try:
            found.extend(parse_spans(text))
        except ValueError:
            merged.bad += 1
    return _joined(found)


def _without(spans: Spans, taken: Spans) -> Spans:
    """
    >>> _without(((0, 9),), ((3, 3), (5, 6)))
    ((0, 2), (4, 4), (7, 9))
    """
    found: list[tuple[int, int]] = []
    for first, last in spans:
        at = first
        for low, high in islice(taken, max(0, bisect_right(taken, (first, MOST_RANKS)) - 1), None):
            if low > last:
                break
            if low > at:
                found.append((at, low - 1))
            at = max(at, high + 1)
        if at <= last:
            found.append((at, last))
    return tuple(found)


# --- the tree


@dataclass(slots=True)
class Node:
    """A step that `ranks` came through. `moving` of them changed below this step's parent in the last
    samples: the step is not in all of them. `ends` is how many end right here. Children are in the order of
    their ranks: the fewest first."""

    step: str
    ranks: Spans = ()
    moving: int = 0
    ends: int = 0
    children: list[Node] = field(default_factory=list)

    @property
    def count(self) -> int:
        return _count(self.ranks)

    def to_json(self) -> dict[str, Any]:
        """Without recursion: a path may be deeper than Python's stack."""
        made: dict[str, Any] = {}
        work: list[tuple[Node, dict[str, Any]]] = [(self, made)]
        while work:
            node, data = work.pop()
            data |= {"step": node.step, "ranks": format_spans(node.ranks), "count": node.count}
            data |= {"moving": node.moving, "ends": node.ends, "children": [{} for _ in node.children]}
            work.extend(zip(node.children, data["children"], strict=True))
        return made


@dataclass(slots=True)
class _Growing:
    children: dict[str, _Growing] = field(default_factory=dict)
    parts: list[Spans] = field(default_factory=list)
    size: int = 0
    moving: int = 0
    ends: int = 0


def prefix_tree(parts: Iterable[tuple[Sequence[str], Spans, int | None]]) -> Node:
    """Of (path, its ranks, how many outer steps stand; None: all). The root is the step "" that every rank is
    in."""
    root = _Growing()
    for path, spans, standing in parts:
        size = _count(spans)
        at = root
        at.parts.append(spans)
        at.size += size
        for depth, step in enumerate(path):
            at = at.children.setdefault(step, _Growing())
            at.parts.append(spans)
            at.size += size
            if standing is not None and depth >= standing:
                at.moving += size
        at.ends += size
    finished = Node("", _of_parts(root.parts), root.moving, root.ends)
    work = [(root, finished)]
    while work:
        growing, node = work.pop()
        for step, child in growing.children.items():
            # Most steps of a path are no branch: the ranks below are those above.
            ranks = node.ranks if len(child.parts) == len(growing.parts) else _of_parts(child.parts)
            node.children.append(Node(step, ranks, child.moving, child.ends))
        made = list(zip(growing.children.values(), node.children, strict=True))
        work.extend(made)
        node.children = [each for _, each in sorted(made, key=lambda pair: (pair[0].size, pair[1].ranks[:1]))]
    return finished


def _of_parts(parts: list[Spans]) -> Spans:
    return parts[0] if len(parts) == 1 else _joined([span for spans in parts for span in spans])
