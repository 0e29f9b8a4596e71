"""Who waits for whom in collectives, over all process groups: from fronts to one explanation.

Pure; reads no clock. Ranks are those of the job. What a single reading cannot show, whether the picture
stays the same, two graphs do: `graph.still(earlier)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from diag.model.observations import Exchange, FlightRecorder
from diag.state.call_order import Passed
from diag.state.collective_fronts import Front, Signature, fronts_of
from diag.state.message_circle import MessageCircle, find_circle

_One = TypeVar("_One")
_STANDS_OUT = 1.5  # times as much waited for as the next


@dataclass(frozen=True, slots=True)
class Wait:
    """Where a rank waits."""

    group: str
    desc: str
    seq: int
    op: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """`kind` is absent_rank, order_cycle, message_circle, mismatch, all_joined or no_pending. `certain` is False where a rank
    without a dump, or a group of unknown members, could change the answer: then culprits may be all those
    without a dump. `sole`: no other call is pending anywhere. `passed`: calls that were due on culprits, which have come
    to later ones without them. `fronts`: of an order_cycle, all calls that ranks wait in."""

    kind: str
    culprits: tuple[int, ...]
    waiting: Mapping[int, Wait]
    signatures: tuple[Signature, ...] = ()
    front: Front | None = None  # the one that tells it
    certain: bool = True
    sole: bool = False
    circle: MessageCircle | None = None
    passed: tuple[Passed, ...] = ()
    fronts: tuple[Front, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """`sinks` are waited for and wait for none; `cycles` wait for each other, and no other rank holds them
    up."""

    fronts: tuple[Front, ...]
    sinks: tuple[int, ...]
    cycles: tuple[tuple[int, ...], ...]
    no_dump: tuple[int, ...]

    def still(self, earlier: WaitGraph) -> WaitGraph:
        """Only the fronts that stood there before with the same ranks: one rank behind by one call is normal
        jitter."""
        before = {front.place for front in earlier.fronts}
        return _graph([front for front in self.fronts if front.place in before], self.no_dump)

    def joined_by(self, fronts: Sequence[Front]) -> WaitGraph:
        """With waits that no recorder keeps and something else showed, of ranks that wait in nothing recorded."""
        recorded = {rank for front in self.fronts for rank in front.waiting}
        new = [front for front in fronts if not recorded.intersection(front.waiting)]
        return _graph([*self.fronts, *new], self.no_dump) if new else self

    def explain(self) -> Explanation:
        """A mismatch outranks absence (it is what the others then wait behind), absence outranks a cycle."""
        waiting = self._waiting()
        mismatched = [front for front in self.fronts if front.signatures]
        if mismatched:
            front = max(mismatched, key=lambda front: (not front.missing, len(front.waiting)))
            blamed = tuple(sorted(minority([item.ranks for item in front.signatures])))
            return Explanation("mismatch", blamed, waiting, front.signatures, front)
        if not self.fronts:
            return Explanation("no_pending", (), {}, certain=not self.no_dump)
        certain = all(front.whole and not front.no_dump for front in self.fronts)
        if self.sinks:
            silent = set(self.no_dump)
            known = tuple(rank for rank in self.sinks if rank not in silent)
            culprits = known or self.sinks
            wanted = set(culprits)
            shown = max(
                self.fronts,
                key=lambda front: (
                    bool(wanted.intersection(front.missing or front.no_dump)),
                    -len(front.missing),
                    len(front.waiting),
                ),
            )
            return Explanation("absent_rank", culprits, waiting, (), shown, certain and bool(known))
        if self.cycles:
            ranks = most_waited_for(self.fronts, {rank for cycle in self.cycles for rank in cycle})
            inside = next((front for front in self.fronts if ranks[0] in front.waiting), None)
            circle = self._circle_of_messages()
            if circle is not None:
                return Explanation(
                    "message_circle", circle.turned, waiting, (), inside, certain, circle=circle
                )
            return Explanation("order_cycle", ranks, waiting, (), inside, certain, fronts=self.fronts)
        guessed = self._as_if_members_were_missing()
        if guessed is not None:
            return replace(guessed, certain=False)
        most = max(self.fronts, key=lambda front: len(front.waiting))
        return Explanation("all_joined", (), waiting, (), most, certain, len(self.fronts) == 1)

    def _circle_of_messages(self) -> MessageCircle | None:
        """Of ranks that wait for nothing but a send or receive of one peer; the first is what the later ones are queued
        behind."""
        exchanges: dict[int, Exchange] = {}
        for front in sorted(self.fronts, key=lambda front: front.seq):
            call = front.op.partition(" ")[0]
            if front.is_p2p and call in ("send", "recv") and len(front.missing) == 1:
                exchanges.setdefault(front.waiting[0], Exchange(call == "send", front.missing[0]))
        circle = find_circle(exchanges)
        inside = {rank for cycle in self.cycles for rank in cycle}
        return circle if circle is not None and inside.issuperset(circle.ranks) else None

    def _as_if_members_were_missing(self) -> Explanation | None:
        """gloo's recorder names no members of a group, so a group looks complete with those who have called in it. A call
        that all have joined would end there: with two such groups, each lacks somebody who waits in another. So does a
        group in its first call, of which no call has shown who belongs to it, while whoever is in that call is waited
        for elsewhere."""
        late = any(front.missing for front in self.fronts)
        seeming = [
            front
            for front in self.fronts
            if not (front.whole or front.is_p2p or front.signatures or front.no_dump or front.missing)
            if front.seq == 1 or not late
        ]
        if len(seeming) + late < 2:
            return None
        fronts = self.fronts if late else seeming
        everybody = {rank for front in fronts for rank in front.waiting}
        filled = [
            replace(front, missing=tuple(sorted(everybody - set(front.waiting))))
            if front in seeming
            else front
            for front in fronts
        ]
        graph = _graph(filled, self.no_dump)
        return graph.explain() if graph.cycles and not graph.sinks else None

    def _waiting(self) -> dict[int, Wait]:
        """Each rank once: where it waits for somebody, before where all have come."""
        waits: dict[int, Wait] = {}
        for front in sorted(
            self.fronts, key=lambda front: (not front.signatures, not (front.missing or front.no_dump))
        ):
            wait = Wait(front.group, front.desc, front.seq, front.op)
            inside = set(front.waiting) if front.signatures else ()
            for item in front.signatures:
                called = replace(wait, op=item.op)
                waits.update({rank: called for rank in item.ranks if rank in inside})
            for rank in front.waiting:
                waits.setdefault(rank, wait)
        return waits


def most_waited_for(fronts: Sequence[Front], inside: set[int]) -> tuple[int, ...]:
    """Of ranks that wait for each other, whom most wait for: a call that many have not come to blames each of
    them little. All of them where none stands out."""
    weight = dict.fromkeys(sorted(inside), 0.0)
    for front in fronts:
        absent = [rank for rank in front.missing if rank in weight]
        for rank in absent:
            weight[rank] += len(front.waiting) / len(front.missing)
    most = max(weight.values())
    top = tuple(rank for rank, value in weight.items() if value == most)
    rest = [value for value in weight.values() if value != most]
    stands_out = bool(rest) and most >= _STANDS_OUT * max(rest) and 2 * len(top) < len(weight)
    return top if stands_out else tuple(weight)


def minority(camps: Sequence[Sequence[_One]]) -> list[_One]:
    """Whoever is not in the largest camp; all of them where no camp is the largest."""
    most = max(map(len, camps))
    largest = [camp for camp in camps if len(camp) == most]
    return [one for camp in camps if len(largest) > 1 or camp is not largest[0] for one in camp]


def build(dumps: Mapping[int, FlightRecorder], world_size: int = 0) -> WaitGraph:
    """`world_size` helps where the recorder does not name who is in a group (gloo)."""
    fronts = fronts_of(dumps, world_size)
    unknown = {rank for front in fronts for rank in front.no_dump}
    unknown.update(rank for rank in range(world_size) if rank not in dumps)
    return _graph(fronts, tuple(sorted(unknown)))


# --- the graph


def _graph(fronts: Sequence[Front], no_dump: tuple[int, ...]) -> WaitGraph:
    """Fronts are nodes of the graph too (numbered below zero): edges grow with ranks, not with their square."""
    edges: dict[int, list[int]] = {}
    for index, front in enumerate(fronts):
        node = -1 - index
        edges[node] = [*front.missing, *front.no_dump]
        for rank in front.waiting:
            edges.setdefault(rank, []).append(node)
    sinks = {rank for front in fronts for rank in (*front.missing, *front.no_dump) if rank not in edges}
    cycles = tuple(
        sorted(
            ranks
            for component in _components(edges)
            if len(ranks := tuple(sorted(node for node in component if node >= 0))) > 1
            and _closed(component, edges)
        )
    )
    ordered = tuple(
        sorted(fronts, key=lambda front: (front.backend, front.group, front.is_p2p, front.seq, front.waiting))
    )
    return WaitGraph(ordered, tuple(sorted(sinks)), cycles, no_dump)


def _closed(component: list[int], edges: Mapping[int, list[int]]) -> bool:
    inside = set(component)
    return all(target in inside for node in component for target in edges.get(node, ()))


def _components(edges: Mapping[int, list[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan), without recursion."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in edges:
        if root in number:
            continue
        work: list[tuple[int, int]] = [(root, 0)]
        while work:
            node, place = work.pop()
            if place == 0:
                number[node] = low[node] = len(number)
                stack.append(node)
                on_stack.add(node)
            targets = edges.get(node, ())
            while place < len(targets):
                target = targets[place]
                place += 1
                if target not in number:
                    work.append((node, place))
                    work.append((target, 0))
                    break
                if target in on_stack:
                    low[node] = min(low[node], number[target])
            else:
                if low[node] == number[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(component)
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
    return found
