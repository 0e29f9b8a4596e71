"""In which collectives ranks are blocked, and who has not come to them: all ranks' Flight Recorders put together. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diag.model.observations import CallHistory, CollectiveEntry, FlightRecorder
from diag.text.units import format_ranks

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


def fronts_of(dumps: Mapping[int, FlightRecorder], world_size: int) -> list[Front]:
    groups = _gather(dumps, world_size)
    return [front for group in groups for front in (*group.fronts(dumps), *group.p2p_fronts(dumps))]


class Group:
    """A process group, with the calls of its ranks."""

    def __init__(self, backend: str, name: str, desc: str, members: tuple[int, ...]) -> None:
        self.backend, self.name, self.members = backend, name, members
        self._desc = desc
        self.highest: dict[int, int] = {}
        self.first: dict[int, CollectiveEntry] = {}  # of each rank, the oldest call that is pending
        self.p2p: dict[int, list[CollectiveEntry]] = {}  # pending ones
        self.calls: dict[int, dict[int, list[CollectiveEntry]]] = {}  # at the fronts: seq, rank

    @property
    def desc(self) -> str:
        """torch calls a group "undefined" that was made without a description: then its number and ranks name it, of
        gloo those that have called in it."""
        ranks = self.members or tuple(sorted(self.highest))
        if self._desc not in ("", "undefined") or not ranks:
            return self._desc
        return f"group {self.name} of {format_ranks(ranks)}"

    def blind(self, rank: int, dumps: Mapping[int, FlightRecorder | CallHistory]) -> bool:
        """Nothing is known of this rank's calls in this backend."""
        dump = dumps.get(rank)
        return dump is None or bool(dump.backends and self.backend not in dump.backends)

    def front(
        self,
        entry: CollectiveEntry,
        waiting: tuple[int, ...],
        missing: tuple[int, ...],
        no_dump: tuple[int, ...],
        signatures: tuple[Signature, ...] = (),
    ) -> Front:
        where = (self.backend, self.name, self.desc, entry.seq, entry.op, entry.is_p2p)
        return Front(*where, waiting, missing, no_dump, signatures, bool(self.members))

    def fronts(self, dumps: Mapping[int, FlightRecorder]) -> Iterator[Front]:
        members = self.members or tuple(sorted(self.highest))
        no_dump = tuple(rank for rank in members if self.blind(rank, dumps))
        silent = set(no_dump)
        by_seq: dict[int, list[int]] = {}
        for rank, entry in self.first.items():
            by_seq.setdefault(entry.seq, []).append(rank)
        ordered = sorted(by_seq.items())
        # The last one then stands for all further on: they too wait for who is missing there.
        for _, further in ordered[_MOST_FRONTS:]:
            ordered[_MOST_FRONTS - 1][1].extend(further)
        for seq, waiting in ordered[:_MOST_FRONTS]:
            missing = tuple(
                rank for rank in members if self.highest.get(rank, 0) < seq and rank not in silent
            )
            entry = self.first[min(rank for rank in waiting if self.first[rank].seq == seq)]
            yield self.front(entry, tuple(sorted(waiting)), missing, no_dump, self.signatures(seq))

    def signatures(self, seq: int) -> tuple[Signature, ...]:
        kinds: dict[tuple[object, ...], tuple[CollectiveEntry, list[int]]] = {}  # an example, and whose
        calls = self.calls.get(seq, {})
        for rank, entries in calls.items():
            parts = [entry for entry in entries if entry.op != "coalesced"] or entries
            kinds.setdefault(tuple(map(_fits, parts)), (parts[0], []))[1].append(rank)
        if len(kinds) < 2:
            return self._uneven_exchange([entry for entries in calls.values() for entry in entries])
        return tuple(
            Signature(
                entry.op, entry.input_sizes or entry.output_sizes, entry.dtypes[:1], tuple(sorted(ranks))
            )
            for entry, ranks in sorted(kinds.values(), key=lambda kind: (-len(kind[1]), kind[1]))
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

    def p2p_fronts(self, dumps: Mapping[int, FlightRecorder]) -> Iterator[Front]:
        pairs = {rank: [self._peer(entry) for entry in entries] for rank, entries in self.p2p.items()}
        for rank, entries in self.p2p.items():
            seen: set[int] = set()
            held_up = False
            for entry, pair in zip(entries, pairs[rank], strict=True):
                if pair is None or pair[1] in seen:
                    continue
                kind, peer = pair
                seen.add(peer)
                met = ("recv" if kind == "send" else "send", rank) in pairs.get(peer, ())
                if met and held_up:
                    continue  # enqueued behind one that is not met: it has not begun
                blind = self.blind(peer, dumps)
                held_up |= not (met or blind)
                yield self.front(entry, (rank,), () if met or blind else (peer,), (peer,) if blind else ())

    def _peer(self, entry: CollectiveEntry) -> tuple[str, int] | None:
        """send or recv, and with whom. The names have ranks of the group: its members in order are those of the
        job."""
        match = _P2P.fullmatch(entry.op)
        if match is None or (self.members and int(match[3]) >= len(self.members)):
            return None
        return match[1], self.members[int(match[3])] if self.members else int(match[3])


def kind_of(entry: CollectiveEntry) -> tuple[object, ...]:
    """What is the same each time that a program makes this call."""
    return (entry.backend, entry.group, *_fits(entry))


def _fits(entry: CollectiveEntry) -> tuple[object, ...]:
    """What must be equal on all ranks. Sizes by number of elements: NCCL does not care for shapes."""
    if _ALL_TO_ALL.search(entry.op):
        return ("all_to_all",)  # even splits and uneven ones may bear two names, and NCCL sends the same
    if _ANY_SIZE.search(entry.op):
        return (entry.op,)
    side = _SIDE.get(entry.op)
    shapes = () if side == "output" else entry.input_sizes
    if side != "input":
        shapes += entry.output_sizes
    return (entry.op, tuple(math.prod(shape) for shape in shapes), entry.dtypes[:1])


class Groups(dict[tuple[str, str, int], Group]):
    """By backend, name and members: two groups may have one name on different ranks."""

    def __init__(self) -> None:
        # By identity: with 16,384 ranks, hashing each rank's list of 16,384 would take seconds.
        self._same: dict[int, tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}

    def of(self, backend: str, name: str, desc: str, ranks: tuple[int, ...] = ()) -> Group:
        if ranks and id(ranks) not in self._same:
            ordered = tuple(sorted(ranks))
            self._same[id(ranks)] = self._shared.setdefault(ordered, ordered)
        ranks = self._same[id(ranks)] if ranks else ()
        key = (backend, name, id(ranks) if ranks else 0)
        if key not in self:
            self[key] = Group(backend, name, desc, ranks)
        return self[key]


def _gather(dumps: Mapping[int, FlightRecorder], world_size: int) -> list[Group]:
    """All ranks' calls by group."""
    groups = Groups()
    everybody = tuple(range(world_size or max(dumps, default=-1) + 1))
    joined: dict[int, dict[tuple[str, str], Group]] = {}
    for rank, dump in dumps.items():
        mine = joined[rank] = {}
        for known in dump.groups:
            ranks = known.members or (everybody if known.desc == "default_pg" else ())
            group = mine[known.backend, known.name] = groups.of(known.backend, known.name, known.desc, ranks)
            group.highest[rank] = known.last_enqueued or 0
        latest: dict[tuple[str, str], CollectiveEntry] = {}
        for entry in dump.entries:  # 1.5 million for 16,384 ranks: what most of them need comes first
            place = (entry.backend, entry.group)
            last = latest.get(place)
            if last is None or (entry.seq > last.seq and not entry.is_p2p) or last.is_p2p:
                latest[place] = entry
            if entry.pending:
                group = mine.get(place) or mine.setdefault(place, groups.of(*place, entry.desc))
                if entry.is_p2p:
                    group.p2p.setdefault(rank, []).append(entry)
                elif rank not in group.first or entry.seq < group.first[rank].seq:
                    group.first[rank] = entry
        for place, entry in latest.items():
            group = mine.get(place) or mine.setdefault(place, groups.of(*place, entry.desc))
            if not entry.is_p2p:
                group.highest[rank] = max(group.highest.get(rank, 0), entry.seq)
    _note_calls(dumps, joined)
    return list(groups.values())


def _note_calls(
    dumps: Mapping[int, FlightRecorder], joined: Mapping[int, Mapping[tuple[str, str], Group]]
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
            if entry.is_p2p or entry.seq not in anywhere:
                continue
            group = mine[entry.backend, entry.group]
            if entry.seq in fronts[id(group)]:
                group.calls.setdefault(entry.seq, {}).setdefault(rank, []).append(entry)
