"""Do the ranks that wait for each other agree on what they must agree on to meet: address, port, count, and who is
which?

Read from each one's environment, and believed where the kernel shows that it is what they go by. Ranks of other
nodes, whose environment is not known here, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from diag.model.observations.waits import Wait
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity
from diag.text.units import format_ranks

# Ours: as long as for any rank that others wait for. A store that comes up or a restart takes less.
STANDS_SECONDS = 15.0
_STALE_SECONDS = 60.0  # of a stack, against the newest
_MEETS = (Activity.RENDEZVOUS, Activity.COMM_INIT)
_WITH_OTHERS = (*_MEETS, Activity.COLLECTIVE, Activity.BACKWARD, Activity.GPU_SYNC)
_MOST_SHOWN = 4

Ranks = Mapping[int, RankView]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """`ranks`: those whose value differs from the first rank's. `seen`: what the kernel shows of it, where it was
    asked."""

    cause: str  # port_differs, address_differs, world_size_differs, duplicate_rank, rank_out_of_range
    ranks: tuple[int, ...]
    compared: tuple[int, ...]
    since: float
    said: str
    seen: str = ""


def disagreement(ranks: Ranks) -> Disagreement | None:
    """None where they agree, where that is not known, or as long as they may just be coming."""
    waiting = _standing(ranks)
    if not any(rank.activity in _MEETS for rank in waiting):
        return None
    return (
        _out_of_range(ranks, waiting)
        or _duplicate(ranks, waiting)
        or _other_port(waiting)
        or _other_address(waiting)
        or _other_count(waiting)
    )


def _standing(ranks: Ranks) -> list[RankView]:
    """Those that wait for others in one call, in order."""
    alive = [rank for _, rank in sorted(ranks.items()) if rank.alive and _by_environment(rank)]
    newest = max((rank.stack_at for rank in alive), default=0.0)
    return [
        rank
        for rank in alive
        if rank.activity in _WITH_OTHERS
        and rank.stack_samples > 1
        and rank.stack_at - rank.stack_since >= STANDS_SECONDS
        and newest - rank.stack_at <= _STALE_SECONDS
    ]


def _by_environment(rank: RankView) -> bool:
    """A rank that its process group alone numbers (mp.spawn) goes by no variable of its environment."""
    return rank.variables.get("RANK") == str(rank.rank)


def _out_of_range(ranks: Ranks, waiting: Sequence[RankView]) -> Disagreement | None:
    """It fails at once or waits; the others wait for a number that nobody has."""
    beyond = [
        rank
        for _, rank in sorted(ranks.items())
        if (rank.alive or rank.failed)
        and _by_environment(rank)
        and rank.rank >= (_number(rank, "WORLD_SIZE") or rank.rank + 1)
    ]
    if not beyond:
        return None
    count = beyond[0].variables["WORLD_SIZE"]
    text = f"{format_ranks([rank.rank for rank in beyond])} {'was' if len(beyond) == 1 else 'were'} started with WORLD_SIZE {count}"
    return _found("rank_out_of_range", beyond, waiting, f"{text}, whose ranks are 0 to {int(count) - 1}")


def _duplicate(ranks: Ranks, waiting: Sequence[RankView]) -> Disagreement | None:
    """Said where all processes of the job are seen and a number is missing: else they may be of several jobs."""
    twice = [rank for _, rank in sorted(ranks.items()) if len(rank.shared) > 1]
    world = _number(waiting[0], "WORLD_SIZE") or 0
    missing = [number for number in range(min(world, 4096)) if number not in ranks]
    processes = len(ranks) + sum(len(rank.shared) - 1 for rank in twice)
    if not twice or not missing or processes != world:
        return None
    parts = [
        f"{len(rank.shared)} processes were started as rank {rank.rank} (pids {', '.join(map(str, rank.shared[:_MOST_SHOWN]))})"
        for rank in twice[:_MOST_SHOWN]
    ]
    text = f"{', '.join(parts)}, and none as {format_ranks(missing)} of WORLD_SIZE {world}"
    return _found("duplicate_rank", twice, waiting, text)


def _other_port(waiting: Sequence[RankView]) -> Disagreement | None:
    meeting = [rank for rank in waiting if rank.activity in _MEETS and "MASTER_PORT" in rank.variables]
    ports = _by_value(meeting, lambda rank: rank.variables["MASTER_PORT"])
    if len(ports) < 2:
        return None
    listens = _listening(meeting[0])
    if listens and meeting[0].variables["MASTER_PORT"] not in listens:
        return None  # the program gives its address otherwise
    return _differing("port_differs", "MASTER_PORT", ports, waiting)


def _other_address(waiting: Sequence[RankView]) -> Disagreement | None:
    """Names of one machine are many. So only where the first rank listens, and others do not get there by
    theirs."""
    meeting = [rank for rank in waiting if rank.activity in _MEETS and "MASTER_ADDR" in rank.variables]
    if not meeting or meeting[0].variables.get("MASTER_PORT") not in _listening(meeting[0]):
        return None
    first = _address(meeting[0])
    apart = [rank for rank in meeting if _unmet(rank) and _address(rank) != first]
    if not apart:
        return None
    away = {rank.rank for rank in apart}
    there = [rank for rank in meeting if rank.rank not in away]
    values = _by_value([*there, *apart], lambda rank: rank.variables["MASTER_ADDR"])
    return _differing("address_differs", "MASTER_ADDR", values, waiting, apart)


def _other_count(waiting: Sequence[RankView]) -> Disagreement | None:
    counted = [rank for rank in waiting if _number(rank, "WORLD_SIZE") and "MASTER_PORT" in rank.variables]
    counts = _by_value(counted, lambda rank: rank.variables["WORLD_SIZE"])
    if len(counts) < 2 or len({rank.variables["MASTER_PORT"] for rank in counted}) > 1:
        return None
    return _differing("world_size_differs", "WORLD_SIZE", counts, waiting)


def _differing(
    cause: str,
    name: str,
    values: Mapping[str, list[RankView]],
    waiting: Sequence[RankView],
    apart: Sequence[RankView] = (),
) -> Disagreement | None:
    groups = list(values.items())
    apart = apart or [rank for _, of in groups[1:] for rank in of]
    seen = "; ".join(_seen([rank for of in values.values() for rank in of]))
    if not seen and name != "WORLD_SIZE":
        return None  # nothing shows that this is what they go by
    shown = [f"{value} ({format_ranks([rank.rank for rank in of])})" for value, of in groups[:_MOST_SHOWN]]
    left = sum(len(of) for _, of in groups[_MOST_SHOWN:])
    more = f" and others ({left} more ranks)" if left else ""
    text = f"the ranks were started with different values of {name}: {', '.join(shown)}{more}"
    return _found(cause, apart, waiting, text, seen)


def _found(
    cause: str, apart: Sequence[RankView], waiting: Sequence[RankView], text: str, seen: str = ""
) -> Disagreement:
    ranks = tuple(sorted(rank.rank for rank in apart))
    compared = tuple(sorted({*ranks, *(rank.rank for rank in waiting)}))
    return Disagreement(cause, ranks, compared, max(rank.stack_since for rank in waiting), text, seen)


def _seen(ranks: Sequence[RankView]) -> Iterator[str]:
    """Which rank listens where, and which get no connection."""
    for rank in ranks:
        if (port := rank.variables.get("MASTER_PORT")) in _listening(rank):
            yield f"{format_ranks([rank.rank])} listens on port {port}"
    places: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.unmet is not None and _unmet(rank):
            host = f"[{rank.unmet.host}]" if ":" in rank.unmet.host else rank.unmet.host
            places.setdefault(f"{host}:{rank.unmet.port}", []).append(rank.rank)
    lost = [number for numbers in places.values() for number in numbers]
    if lost:
        where = ", ".join(list(places)[:_MOST_SHOWN]) + (" ..." if len(places) > _MOST_SHOWN else "")
        yield f"{format_ranks(sorted(lost))} {'gets' if len(lost) == 1 else 'get'} no connection to {where}"


def _unmet(rank: RankView) -> bool:
    return rank.unmet is not None and rank.unmet.pid == rank.placement.pid


def _listening(rank: RankView) -> set[str]:
    """The ports on which a thread of its process waits for connections; empty where nobody looked."""
    process = rank.process_waits()
    return {
        port for thread in (process.threads if process is not None else ()) for port in _ports(thread.wait)
    }


def _ports(wait: Wait) -> Iterator[str]:
    if wait.socket_state == "LISTEN":
        yield wait.local.rpartition(":")[2]
    for one in wait.watched:
        yield from _ports(one)


def _by_value(ranks: Sequence[RankView], value: Callable[[RankView], str]) -> dict[str, list[RankView]]:
    found: dict[str, list[RankView]] = {}
    for rank in ranks:
        found.setdefault(value(rank).strip(), []).append(rank)
    return found


def _address(rank: RankView) -> str:
    text = rank.variables["MASTER_ADDR"].strip().lower()
    try:
        return "localhost" if ip_address(text).is_loopback else str(ip_address(text))
    except ValueError:
        return text


def _number(rank: RankView, name: str) -> int | None:
    text = rank.variables.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None
