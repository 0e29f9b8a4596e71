"""Calls that all ranks ended although they did not fit together: recorders of all ranks put together. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diag.model.observations import CallHistory, CollectiveEntry, FlightRecorder
from diag.state.collective_fronts import Front, Group, Groups, Signature

_Recorder = FlightRecorder | CallHistory
_Calls = dict[
    int, list[CollectiveEntry]
]  # by their number in the group; the parts of a coalesced call share one


@dataclass(frozen=True, slots=True)
class Passed:
    """What the recorders say of one group. `ended` are the numbers of the calls that all its ranks have ended, of which
    those in `compared` could be compared (of a coalesced call the parts may stand in any order)."""

    backend: str
    group: str
    members: tuple[int, ...]
    ended: tuple[int, ...]
    compared: tuple[int, ...]
    found: tuple[Front, ...]  # that did not fit together, the newest first


def passed_calls(dumps: Mapping[int, _Recorder], world_size: int) -> list[Passed]:
    """Of each group of which all members' recorders are there."""
    groups = Groups()
    everybody = tuple(range(world_size or max(dumps, default=-1) + 1))
    made: dict[int, tuple[Group, dict[int, tuple[_Calls, int]]]] = {}
    for rank, dump in dumps.items():
        for backend, name, desc, members, calls in _sequences(dump):
            group = groups.of(backend, name, desc, members or (everybody if desc == "default_pg" else ()))
            made.setdefault(id(group), (group, {}))[1][rank] = _newest(calls)
    return [
        _compare(group, {rank: calls for rank, (calls, _) in by_rank.items()})
        for group, by_rank in made.values()
        if group.members
        and set(group.members) == set(by_rank)
        and not any(group.blind(rank, dumps) for rank in group.members)
        # one that was made anew under its name here, and there not yet: equal numbers are not the same call
        and len({begun for _, begun in by_rank.values()}) == 1
    ]


def passed_mismatches(dumps: Mapping[int, _Recorder], world_size: int) -> tuple[list[Front], int]:
    """Calls that are over on all their ranks although they did not fit together, the newest of each group first;
    and how many calls were compared. NCCL moves what the smaller one has, and nobody waits."""
    groups = passed_calls(dumps, world_size)
    return [front for group in groups for front in group.found], sum(len(one.compared) for one in groups)


def _sequences(
    dump: _Recorder,
) -> Iterator[tuple[str, str, str, tuple[int, ...], list[tuple[int, CollectiveEntry]]]]:
    """Of each group backend, name, description, members, and the collectives in the order of their issue."""
    if isinstance(dump, CallHistory):
        for one in dump.groups:
            calls = [(seq, one.kinds[kind]) for seq, kind in one.calls]
            yield one.backend, one.name, one.desc, one.members, calls
        return
    known = {(group.backend, group.name): group for group in dump.groups}
    found: dict[tuple[str, str], list[tuple[int, CollectiveEntry]]] = {}
    for entry in dump.entries:
        if not entry.is_p2p:
            found.setdefault((entry.backend, entry.group), []).append((entry.seq, entry))
    for place, calls in found.items():
        group = known.get(place)
        desc, members = (group.desc, group.members) if group is not None else (calls[-1][1].desc, ())
        yield *place, desc, members, calls


def _newest(calls: Sequence[tuple[int, CollectiveEntry]]) -> tuple[_Calls, int]:
    """Those since the group was made, and how often it was made anew: its numbers begin again."""
    found: _Calls = {}
    begun = last = 0
    for seq, entry in calls:
        if seq < last:
            begun += 1
            found = {}
        last = seq
        found.setdefault(seq, []).append(entry)
    return found, begun


def _compare(group: Group, calls: Mapping[int, _Calls]) -> Passed:
    ended, compared, found = [], [], []
    known: dict[tuple[int, ...], tuple[Signature, ...]] = {}  # calls of a kind are often one object
    ranks = group.members
    in_all = set.intersection(*(set(calls[rank]) for rank in ranks))
    for seq in sorted(in_all, reverse=True):
        by_rank = [calls[rank][seq] for rank in ranks]
        if any(entry.pending for entries in by_rank for entry in entries):
            continue
        ended.append(seq)
        if any(len(entries) != 1 or entries[0].op == "coalesced" for entries in by_rank):
            continue
        compared.append(seq)
        made = [entries[0] for entries in by_rank]
        key = tuple(map(id, made))
        if key not in known:
            group.calls[0] = {rank: [entry] for rank, entry in zip(ranks, made, strict=True)}
            known[key] = group.signatures(0)
        if len(known[key]) > 1:
            found.append(group.front(dataclasses.replace(made[0], seq=seq), ranks, (), (), known[key]))
    return Passed(group.backend, group.name, ranks, tuple(ended), tuple(compared), tuple(found))
