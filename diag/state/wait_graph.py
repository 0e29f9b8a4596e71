"""Who waits for whom in collectives, over all process groups: from each rank's Flight Recorder to one
explanation.

Pure; reads no clock. Ranks are those of the job. What a single reading cannot tell, whether the picture
stands still, two graphs do: `graph.still(earlier)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diag.model.observations import CollectiveEntry, FlightRecorder

# Operations of which only one side has the tensor on every rank; elsewhere both are compared.
_SIDE = {"broadcast": "input", "reduce": "input", "gather": "input", "scatter": "output"}
# Sizes differ between ranks by intent: v-collectives, the parts of uneven ones (_oop), barriers (a dummy
# tensor).
_ANY_SIZE = re.compile(r"all_?to_?all|_v$|allv|_oop|barrier|coalesced")
_ALL_TO_ALL = re.compile(r"all_?to_?all")
# Of one group. Ranks of one group are a few calls apart; each front has up to all members in it, so many are
# quadratic.
_MOST_FRONTS = 64
# torch, ProcessGroupNCCL::pointToPoint; captured on H200, torch 2.11:
#   nccl:send 0->1
#   nccl:recv 1<-0
_P2P = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")


@dataclass(frozen=True, slots=True)
class Signature:
    """What some ranks called at a front where others called something else."""

    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Front:
    """Ranks that stand in one call of one group (or in one point-to-point call), and who has not come to it."""

    backend: str
    group: str
    desc: str
    seq: int
    op: str
    is_p2p: bool
    waiting: tuple[int, ...]
    missing: tuple[int, ...]  # their recorder answered, and they have not issued this call
    no_dump: tuple[int, ...]  # members of whom nothing is known
    signatures: tuple[Signature, ...] = ()  # two or more where the calls do not fit together
    whole: bool = True  # False: who belongs to the group was guessed from who called in it

    @property
    def place(self) -> tuple[str, str, int, bool, tuple[int, ...]]:
        return (self.backend, self.group, self.seq, self.is_p2p, self.waiting)


@dataclass(frozen=True, slots=True)
class Wait:
    """Where a rank waits."""

    group: str
    desc: str
    seq: int
    op: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """`kind` is absent_rank, order_cycle, mismatch, all_joined or no_pending. `certain` is False where a rank
    without a dump, or a group of unknown members, could change the answer: then culprits may be all those
    without a dump. `sole`: no other call is pending anywhere."""

    kind: str
    culprits: tuple[int, ...]
    waiting: Mapping[int, Wait]
    signatures: tuple[Signature, ...] = ()
    front: Front | None = None  # the one that tells it
    certain: bool = True
    sole: bool = False


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """`sinks` are waited for and wait for nobody; `cycles` wait for each other, and nobody else holds them
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
        """With waits that no recorder keeps and something else told, of ranks that wait in nothing recorded."""
        recorded = {rank for front in self.fronts for rank in front.waiting}
        new = [front for front in fronts if not recorded.intersection(front.waiting)]
        return _graph([*self.fronts, *new], self.no_dump) if new else self

    def explain(self) -> Explanation:
        """A mismatch outranks absence (it is what the others then wait behind), absence outranks a cycle."""
        waiting = self._waiting()
        mismatched = [front for front in self.fronts if front.signatures]
        if mismatched:
            front = max(mismatched, key=lambda front: (not front.missing, len(front.waiting)))
            return Explanation("mismatch", _minority(front.signatures), waiting, front.signatures, front)
        if not self.fronts:
            return Explanation("no_pending", (), {}, certain=not self.no_dump)
        certain = all(front.whole and not front.no_dump for front in self.fronts)
        if self.sinks:
            silent = set(self.no_dump)
            known = tuple(rank for rank in self.sinks if rank not in silent)
            culprits = known or self.sinks
            wanted = set(culprits)
            told = max(
                self.fronts,
                key=lambda front: (
                    bool(wanted.intersection(front.missing or front.no_dump)),
                    -len(front.missing),
                    len(front.waiting),
                ),
            )
            return Explanation("absent_rank", culprits, waiting, (), told, certain and bool(known))
        if self.cycles:
            ranks = _most_waited_for(self.fronts, {rank for cycle in self.cycles for rank in cycle})
            inside = next((front for front in self.fronts if ranks[0] in front.waiting), None)
            return Explanation("order_cycle", ranks, waiting, (), inside, certain)
        guessed = self._as_if_members_were_missing()
        if guessed is not None:
            return replace(guessed, certain=False)
        most = max(self.fronts, key=lambda front: len(front.waiting))
        return Explanation("all_joined", (), waiting, (), most, certain, len(self.fronts) == 1)

    def _as_if_members_were_missing(self) -> Explanation | None:
        """gloo's recorder names no members of a group, so a group looks complete with those who have called
        in it. A call that all have joined would end there: with two such groups, each lacks somebody who
        waits in another."""
        guessed = [
            front
            for front in self.fronts
            if not (front.whole or front.is_p2p or front.signatures or front.no_dump)
        ]
        if len(guessed) < 2 or any(front.missing for front in self.fronts):
            return None
        everybody = {rank for front in guessed for rank in front.waiting}
        filled = [replace(front, missing=tuple(sorted(everybody - set(front.waiting)))) for front in guessed]
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


def _most_waited_for(fronts: Sequence[Front], inside: set[int]) -> tuple[int, ...]:
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


def build(
    dumps: Mapping[int, FlightRecorder],
    members: Mapping[str, Sequence[int]] | None = None,
    world_size: int = 0,
) -> WaitGraph:
    """`members` and `world_size` help where the recorder does not tell who is in a group (gloo)."""
    groups = _gather(dumps, members or {}, world_size)
    fronts: list[Front] = []
    for group in groups:
        fronts.extend(group.fronts(dumps))
        fronts.extend(group.p2p_fronts(dumps))
    unknown = set().union(*(front.no_dump for front in fronts)) if fronts else set()
    unknown.update(rank for rank in range(world_size) if rank not in dumps)
    return _graph(fronts, tuple(sorted(unknown)))


_STANDS_OUT = 1.5  # times as much waited for as the next

# --- fronts
# ----------------------------------------------------------------------------------------------------


class _Group:
    def __init__(self, backend: str, name: str, desc: str, members: tuple[int, ...]) -> None:
        self.backend, self.name, self.desc = backend, name, desc
        self.members, self.known = members, bool(members)
        self.highest: dict[int, int] = {}
        self.first: dict[int, CollectiveEntry] = {}  # of each rank, the oldest call that is pending
        self.p2p: dict[int, list[CollectiveEntry]] = {}  # pending ones
        self.calls: dict[int, dict[int, list[CollectiveEntry]]] = {}  # at the fronts: seq, rank

    def blind(self, rank: int, dumps: Mapping[int, FlightRecorder]) -> bool:
        """Nothing is known of this rank's calls in this backend."""
        dump = dumps.get(rank)
        return dump is None or bool(dump.backends and self.backend not in dump.backends)

    def fronts(self, dumps: Mapping[int, FlightRecorder]) -> list[Front]:
        members = self.members or tuple(sorted(self.highest))
        no_dump = tuple(rank for rank in members if self.blind(rank, dumps))
        silent = set(no_dump)
        found = []
        by_seq: dict[int, list[int]] = {}
        for rank, entry in self.first.items():
            by_seq.setdefault(entry.seq, []).append(rank)
        ordered = sorted(by_seq.items())
        # the last one then stands for all further on: they too wait for who is missing there
        if len(ordered) > _MOST_FRONTS:
            further = [rank for _, ranks in ordered[_MOST_FRONTS - 1 :] for rank in ranks]
            ordered[_MOST_FRONTS - 1 :] = [(ordered[_MOST_FRONTS - 1][0], further)]
        for seq, waiting in ordered:
            missing = tuple(
                rank for rank in members if self.highest.get(rank, 0) < seq and rank not in silent
            )
            entry = self.first[min(rank for rank in waiting if self.first[rank].seq == seq)]
            found.append(
                Front(
                    self.backend,
                    self.name,
                    self.desc,
                    seq,
                    entry.op,
                    False,
                    tuple(sorted(waiting)),
                    missing,
                    no_dump,
                    self._signatures(seq),
                    self.known,
                )
            )
        return found

    def _signatures(self, seq: int) -> tuple[Signature, ...]:
        kinds: dict[tuple[object, ...], list[int]] = {}
        examples: dict[tuple[object, ...], CollectiveEntry] = {}
        calls = self.calls.get(seq, {})
        for rank, entries in calls.items():
            parts = [entry for entry in entries if entry.op != "coalesced"] or entries
            key = tuple(_kind(entry) for entry in parts)
            kinds.setdefault(key, []).append(rank)
            examples.setdefault(key, parts[0])
        if len(kinds) < 2:
            return self._uneven_exchange([entry for entries in calls.values() for entry in entries])
        return tuple(
            Signature(
                entry.op, entry.input_sizes or entry.output_sizes, entry.dtypes[:1], tuple(sorted(ranks))
            )
            for key, ranks in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[1]))
            for entry in [examples[key]]
        )

    def _uneven_exchange(self, entries: list[CollectiveEntry]) -> tuple[Signature, ...]:
        """all_to_all: what all send together must be what all receive; which rank is wrong, that does not
        tell."""
        if len(entries) != len(self.members) or not all(_ALL_TO_ALL.search(entry.op) for entry in entries):
            return ()
        sent = sum(math.prod(shape) for entry in entries for shape in entry.input_sizes)
        received = sum(math.prod(shape) for entry in entries for shape in entry.output_sizes)
        if sent == received:
            return ()
        return (Signature(entries[0].op, (), entries[0].dtypes[:1], self.members),)

    def p2p_fronts(self, dumps: Mapping[int, FlightRecorder]) -> list[Front]:
        found: list[Front] = []
        wanted: dict[int, set[tuple[str, int]]] = {}  # what each rank has pending: (send or recv, with whom)
        for rank, entries in self.p2p.items():
            wanted[rank] = {
                (kind, peer) for entry in entries if (pair := self._peer(entry)) for kind, peer in [pair]
            }
        for rank, entries in self.p2p.items():
            told: set[int] = set()
            for entry in entries:
                pair = self._peer(entry)
                if pair is None or pair[1] in told:
                    continue
                kind, peer = pair
                told.add(peer)
                met = ("recv" if kind == "send" else "send", rank) in wanted.get(peer, ())
                blind = self.blind(peer, dumps)
                found.append(
                    Front(
                        self.backend,
                        self.name,
                        self.desc,
                        entry.seq,
                        entry.op,
                        True,
                        (rank,),
                        () if met or blind else (peer,),
                        (peer,) if blind else (),
                        (),
                        self.known,
                    )
                )
        return found

    def _peer(self, entry: CollectiveEntry) -> tuple[str, int] | None:
        """The names have ranks of the group: its members in order tell those of the job."""
        match = _P2P.fullmatch(entry.op)
        if match is None:
            return None
        peer = int(match[3])
        if self.members:
            if peer >= len(self.members):
                return None
            return match[1], self.members[peer]
        return match[1], peer


def _kind(entry: CollectiveEntry) -> tuple[object, ...]:
    """What must be equal on all ranks. Sizes by number of elements: NCCL does not care for shapes."""
    if _ANY_SIZE.search(entry.op):
        return (entry.op,)
    side = _SIDE.get(entry.op)
    shapes = () if side == "output" else entry.input_sizes
    if side != "input":
        shapes += entry.output_sizes
    return (entry.op, tuple(math.prod(shape) for shape in shapes), entry.dtypes[:1])


def _minority(signatures: Sequence[Signature]) -> tuple[int, ...]:
    """Whoever differs from the largest camp; all of them when no camp is the largest."""
    most = max(len(item.ranks) for item in signatures)
    largest = [item for item in signatures if len(item.ranks) == most]
    blamed = signatures if len(largest) > 1 else [item for item in signatures if item is not largest[0]]
    return tuple(sorted(rank for item in blamed for rank in item.ranks))


def _gather(
    dumps: Mapping[int, FlightRecorder], members: Mapping[str, Sequence[int]], world_size: int
) -> list[_Group]:
    """All ranks' calls by group. Two groups may have one name on different ranks, so who is in them is part
    of the key."""
    found: dict[tuple[str, str, int], _Group] = {}
    given = {name: tuple(sorted(ranks)) for name, ranks in members.items()}
    everybody = tuple(range(world_size or max(dumps, default=-1) + 1))
    # By identity: with 16,384 ranks, hashing each rank's list of 16,384 would take seconds.
    same: dict[int, tuple[int, ...]] = {}
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}

    def group_of(backend: str, name: str, desc: str, ranks: tuple[int, ...]) -> _Group:
        if ranks and id(ranks) not in same:
            ordered = tuple(sorted(ranks))
            same[id(ranks)] = shared.setdefault(ordered, ordered)
        ranks = same[id(ranks)] if ranks else ()
        key = (backend, name, id(ranks) if ranks else 0)
        if key not in found:
            found[key] = _Group(backend, name, desc, ranks)
        return found[key]

    joined: dict[int, dict[tuple[str, str], _Group]] = {}
    for rank, dump in dumps.items():
        mine: dict[tuple[str, str], _Group] = {}
        for known in dump.groups:
            ranks = known.members or given.get(known.name, ())
            if not ranks and known.desc == "default_pg":
                ranks = everybody
            group = mine[known.backend, known.name] = group_of(known.backend, known.name, known.desc, ranks)
            group.highest[rank] = known.last_enqueued or 0
        latest: dict[tuple[str, str], CollectiveEntry] = {}
        for entry in dump.entries:  # 1.5 million for 16,384 ranks: what most of them need comes first
            place = (entry.backend, entry.group)
            last = latest.get(place)
            if last is None or (entry.seq > last.seq and not entry.is_p2p) or last.is_p2p:
                latest[place] = entry
            if not entry.pending:
                continue
            at = mine.get(place)
            if at is None:
                at = mine[place] = group_of(
                    entry.backend, entry.group, entry.desc, given.get(entry.group, ())
                )
            if entry.is_p2p:
                at.p2p.setdefault(rank, []).append(entry)
            elif rank not in at.first or entry.seq < at.first[rank].seq:
                at.first[rank] = entry
        for place, entry in latest.items():
            at = mine.get(place)
            if at is None:
                at = mine[place] = group_of(
                    entry.backend, entry.group, entry.desc, given.get(entry.group, ())
                )
            if not entry.is_p2p:
                at.highest[rank] = max(at.highest.get(rank, 0), entry.seq)
        joined[rank] = mine
    _note_calls(dumps, joined)
    return list(found.values())


def _note_calls(
    dumps: Mapping[int, FlightRecorder], joined: Mapping[int, Mapping[tuple[str, str], _Group]]
) -> None:
    """What each rank called at the fronts of its groups, whether it still waits there or not."""
    fronts: dict[int, frozenset[int]] = {}
    for mine in joined.values():
        for group in mine.values():
            if id(group) not in fronts:
                fronts[id(group)] = frozenset(entry.seq for entry in group.first.values())
    anywhere = frozenset().union(*fronts.values()) if fronts else frozenset()
    for rank, dump in dumps.items():
        mine = joined[rank]
        for entry in dump.entries:
            if entry.seq not in anywhere or entry.is_p2p:
                continue
            group = mine[entry.backend, entry.group]
            if entry.seq in fronts[id(group)]:
                group.calls.setdefault(entry.seq, {}).setdefault(rank, []).append(entry)


# --- the graph
# -------------------------------------------------------------------------------------------------


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
