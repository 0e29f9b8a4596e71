"""What NCCL RAS says of a job that stands still: who is gone, and who is behind.

RAS counts calls that ranks launched, not those that ended, and of five collectives only: no send, no receive,
no all-to-all, no replayed graph. So it names who is behind and never why, and "all joined" is no proof of
health. One reading of a job that moves has counts that differ: only what stands in two readings counts. Its
ranks are numbers within a communicator; the job's are found by host and pid. And it knows only communicators
that are made: torch makes a group's at the group's first call, within it, so that a job that stands in its
first step may have that of the world alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from diag.model.observations import RasCommunicator, RasRank, RasReading
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from diag.state.wait_graph import minority
from diag.text.units import format_ranks

_APART_SECONDS = 4.5  # they are asked 5 s apart
_TOGETHER_SECONDS = 60.0  # further apart they are of two suspicions, and the job may have moved between
_IN_PROGRESS = 7  # ncclInProgress
_MOST_WORDS = 12

Process = tuple[str, int]  # (host as RAS has it, pid)


@dataclass(frozen=True, slots=True)
class RasExplanation:
    """Ranks are the job's. What could not be mapped to one is in `elsewhere`, as RAS writes it."""

    dead: tuple[int, ...] = ()  # unreachable for so long that RAS gave their processes up
    moving: bool = False  # two readings, and counts moved between them
    # Only of two readings in which no count moved that both have:
    lagging: tuple[int, ...] = ()  # launched fewer collectives than their peers and are ahead of none
    calls_differ: tuple[int, ...] = ()  # launched other collectives than their peers, neither more nor fewer
    crossed: tuple[int, ...] = ()  # each behind in one communicator and ahead in another
    elsewhere: tuple[str, ...] = ()  # culprits that are no known ranks: "process 77 on node 192.0.2.3"
    sole_size: int = 0  # ranks of the only communicator that there is, in which all launched the same; 0 where there are others
    words: tuple[str, ...] = ()


class Ras:
    """Keeps the last two readings."""

    listens = (RasReading,)

    def __init__(self) -> None:
        self._last: tuple[float, RasReading] | None = None
        self._before: tuple[float, RasReading] | None = None
        self._explained: tuple[tuple[object, ...], RasExplanation | None] = ((), None)

    def observe(self, at: float, fact: RasReading) -> None:
        if self._last is not None and at - self._last[0] >= _APART_SECONDS:
            self._before = self._last
        elif self._last is not None:
            fact = _both(self._last[1], fact)
        self._last = (at, fact)

    def explain(self, now: float, job: JobView) -> RasExplanation | None:
        """None without a reading of this job since it last moved."""
        if self._last is None or self._last[0] > now or _moved_since(self._last[0], job):
            return None
        places = tuple((rank.rank, rank.placement.host, rank.placement.pid) for rank in job.ranks.values())
        key = (self._last[0], places)
        if self._explained[0] != key:  # asked each second of a hang that may last for hours
            self._explained = (key, self._explain(*self._last, job))
        return self._explained[1]

    def _explain(self, at: float, reading: RasReading, job: JobView) -> RasExplanation | None:
        ranks = ranks_of(reading, job)
        if not ranks:
            return None  # another job's answer, or pids of another namespace
        before = None
        if self._before is not None and _APART_SECONDS <= at - self._before[0] <= _TOGETHER_SECONDS:
            before = self._before[1]
        return _Judge(reading, before, ranks).explanation()


def _both(first: RasReading, second: RasReading) -> RasReading:
    """Of one moment: the text beside the JSON of a folder adds who is dead and its own words, and tells fewer
    members."""
    if first.detailed == second.detailed or not (first.whole and second.whole):
        return second
    detailed, text = (first, second) if first.detailed else (second, first)
    return replace(detailed, dead=text.dead, excerpts=text.excerpts)


def _moved_since(at: float, job: JobView) -> bool:
    return (job.progress.log_moved_at or 0.0) > at or any(
        rank.last_moved(("stack",)) > at for rank in job.alive_ranks()
    )


# --- whose processes these are


def ranks_of(reading: RasReading, job: JobView) -> dict[Process, int]:
    """Ranks of the job by host and pid as RAS has them; empty where they are not known.

    RAS has the address of a network interface, the job a host's name: a host of RAS is the job's where its
    processes are the job's. Where several hosts have processes of the same pids (containers), nothing is
    said.
    """
    seen: dict[str, set[int]] = {}
    for host, pid in _processes(reading):
        seen.setdefault(host, set()).add(pid)
    placed: dict[str, dict[int, int]] = {}
    for rank in job.ranks.values():
        placed.setdefault(rank.placement.host, {})[rank.placement.pid] = rank.rank
    found: dict[Process, int] = {}
    for name, pids in placed.items():
        hosts = set(seen)
        if reading.addresses and name == reading.host:
            hosts = (hosts & set(reading.addresses)) or hosts
        if name in seen:
            hosts = {name}
        matches = sorted(((len(seen[host] & set(pids)), host) for host in hosts), reverse=True)
        if not matches or 2 * matches[0][0] < max(1, len(seen[matches[0][1]])):
            continue  # most of that host's processes are strangers
        if len(matches) > 1 and matches[0][0] == matches[1][0]:
            continue
        host = matches[0][1]
        found.update({(host, pid): pids[pid] for pid in seen[host] & set(pids)})
    return found


def _processes(reading: RasReading) -> Iterator[Process]:
    yield from reading.dead
    for communicator in reading.communicators:
        yield from ((rank.host, rank.pid) for rank in communicator.ranks)
        yield from ((one.host, one.pid) for one in communicator.missing)


# --- judging


class _Judge:
    def __init__(self, reading: RasReading, before: RasReading | None, ranks: dict[Process, int]) -> None:
        self.reading, self.before, self.ranks = reading, before, ranks
        self.behind: set[Process] = set()
        self.ahead: set[Process] = set()
        self.differ: set[Process] = set()

    def explanation(self) -> RasExplanation:
        reading = self.reading
        dead = _dead(reading)
        silent = _silent(reading)
        unresponsive = silent & _silent(self.before) - dead if self.before is not None else set()
        moving = self._moves()
        lagging = self.behind - self.ahead - self.differ
        crossed = self.behind & self.ahead - self.differ if not lagging else set()
        culprits = dead | unresponsive | lagging | self.differ
        return RasExplanation(
            dead=self._known(dead),
            moving=moving,
            lagging=self._known(lagging),
            calls_differ=self._known(self.differ),
            crossed=self._known(crossed),
            elsewhere=tuple(
                f"process {pid} on node {host}"
                for host, pid in sorted(culprits)
                if (host, pid) not in self.ranks
            ),
            sole_size=_sole_size(reading),
            words=tuple(_words(reading)),
        )

    def _moves(self) -> bool:
        """Whether its counters have moved since the earlier reading. Those that have not are compared among members."""
        if self.before is None:
            return False
        earlier, later = _counts(self.before), _counts(self.reading)
        both = earlier.keys() & later.keys()
        moving = any(earlier[key] != later[key] for key in both)
        if all(one.detailed and one.whole for one in (self.reading, self.before)):
            moving = moving or earlier.keys() != later.keys()  # a communicator was made or destroyed
        for communicator in self.reading.communicators if not moving else ():
            if communicator.hash in both:
                self._compare(communicator)
        return moving

    def _known(self, processes: set[Process]) -> tuple[int, ...]:
        return tuple(sorted({self.ranks[process] for process in processes if process in self.ranks}))

    def _compare(self, communicator: RasCommunicator) -> None:
        """Who of a communicator's members has launched less than another, or other calls."""
        rows = _rows(communicator)
        kinds = {row for _, row in rows}
        if len(kinds) < 2:
            return
        top = tuple(map(max, zip(*(row for _, row in rows), strict=True)))
        if all(row != top for _, row in rows):  # no rank has launched all that the others have
            camps = [[process for process, row in rows if row == kind] for kind in kinds]
            self.differ |= {process for process in minority(camps) if process is not None}
            return
        least = {
            row
            for row in kinds
            if not any(other != row and all(map(int.__le__, other, row)) for other in kinds)
        }
        self.behind |= {process for process, row in rows if process is not None and row in least}
        self.ahead |= {process for process, row in rows if process is not None and row not in least}


def _rows(communicator: RasCommunicator) -> list[tuple[Process | None, tuple[int, ...]]]:
    """Of each member its process and its counts, operations in one order. None: the text does not say who it
    is.

    Of an operation that the text does not tell of a member, it has launched what most others have.
    """
    known = {name for rank in communicator.ranks for name, _ in rank.counts}
    names = sorted(known | {name for name, _, _ in communicator.unnamed})
    crowd: dict[str, tuple[int, int]] = {}
    for name, count, ranks in communicator.unnamed:
        crowd[name] = max(crowd.get(name, (0, 0)), (ranks, count))
    usual = {
        name: crowd[name][1]
        if name in crowd
        else max(dict(rank.counts).get(name, 0) for rank in communicator.ranks)
        for name in names
    }
    rows: list[tuple[Process | None, tuple[int, ...]]] = []
    for rank in communicator.ranks:
        if not rank.counts and communicator.unnamed:
            continue  # named for another reason than its counts
        counts = dict(rank.counts)
        rows.append(((rank.host, rank.pid), tuple(counts.get(name, usual[name]) for name in names)))
    if communicator.unnamed:
        rows.append((None, tuple(usual[name] for name in names)))
    return rows


def _has_error(rank: RasRank) -> bool:
    return any(code not in (None, 0, _IN_PROGRESS) for code in (rank.init_state, rank.async_error))


def _dead(reading: RasReading) -> set[Process]:
    missing = (one for communicator in reading.communicators for one in communicator.missing)
    return set(reading.dead) | {(one.host, one.pid) for one in missing if one.considered_dead}


def _silent(reading: RasReading) -> set[Process]:
    missing = (one for communicator in reading.communicators for one in communicator.missing)
    return {(one.host, one.pid) for one in missing if one.unresponsive}


def _counts(reading: RasReading) -> dict[str, tuple[object, ...]]:
    """What each communicator's ranks have launched, as far as it is reported: the text does so only where they
    differ."""
    return {
        item.hash: (
            item.unnamed,
            frozenset((rank.rank, rank.host, rank.pid, rank.counts) for rank in item.ranks),
        )
        for item in reading.communicators
        if item.unnamed or any(rank.counts for rank in item.ranks)
    }


def _sole_size(reading: RasReading) -> int:
    if not reading.whole or len(reading.communicators) != 1:
        return 0
    sole = reading.communicators[0]
    same = len({rank.counts for rank in sole.ranks}) < 2
    return sole.size if same and sole.status == "RUNNING" and not sole.errors and not sole.missing else 0


# Of torch.distributed's calls those that NCCL counts, by Broadcast, Reduce, AllGather, ReduceScatter or
# AllReduce; without those of objects and barriers, which people put on groups of gloo.
_COUNTED = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base", "reduce_scatter", "reduce_scatter_tensor",
    "_reduce_scatter_base", "broadcast", "reduce",
})  # fmt: skip


def not_made(report: RasExplanation, ranks: Iterable[int], job: JobView) -> str:
    """What to report of ranks that are in a call of a group whose communicator does not exist yet; "" where it
    may.

    A call is counted before it can be waited for. Where the world's communicator is the only one and all its
    members launched the same, the call that a rank is in is none of its: it is still making its group's.
    """
    if job.iteration is not None or report.sole_size < max(2, job.world_size):
        return ""
    calls: dict[str, list[int]] = {}
    for number in sorted(set(ranks)):
        reading = job.ranks[number].reading if number in job.ranks else None
        where = reading.where if reading is not None and reading.activity is Activity.COLLECTIVE else None
        if where is not None and where.function in _COUNTED and "torch/distributed/" in where.file:
            calls.setdefault(where.function, []).append(number)
    if not calls:
        return ""
    who = ", ".join(f"{format_ranks(tuple(found))} in {call}" for call, found in sorted(calls.items()))
    return (
        f"no communicator has counted the call of {who}: the only one there is, of all {report.sole_size} ranks, is at rest. "
        "torch makes a group's at its first call: unless it is of another backend, this one is not made yet, and RAS cannot "
        "show who is missing in it"
    )


def _words(reading: RasReading) -> Iterator[str]:
    """The text report's own paragraphs; of JSON, which has none, the numbers that differ."""
    if reading.excerpts:
        yield from reading.excerpts[:_MOST_WORDS]
        return
    shown = 0
    for communicator in reading.communicators:
        if communicator.errors and shown < _MOST_WORDS:
            shown += 1
            yield f"communicator {communicator.hash} of {communicator.size}: {_sentence(communicator)}"


def _sentence(communicator: RasCommunicator) -> str:
    parts = []
    for name in sorted({name for rank in communicator.ranks for name, _ in rank.counts}):
        by_count: dict[int, list[RasRank]] = {}
        for rank in communicator.ranks:
            by_count.setdefault(dict(rank.counts).get(name, 0), []).append(rank)
        if len(by_count) > 1:
            counts = [f"{count} by {_who(ranks)}" for count, ranks in sorted(by_count.items(), reverse=True)]
            parts.append(f"{name} launched {', '.join(counts)}")
    for rank in communicator.ranks:
        if _has_error(rank):
            parts.append(f"{_who([rank])} has init_state {rank.init_state}, async_error {rank.async_error}")
    for one in communicator.missing:
        state = (
            "considered dead"
            if one.considered_dead
            else "unresponsive"
            if one.unresponsive
            else "not a member any more"
        )
        parts.append(f"its rank {one.rank} (process {one.pid} on {one.host}) is {state}")
    return "; ".join(parts[:8]) or f"{communicator.status} {','.join(communicator.errors)}"


def _who(ranks: list[RasRank]) -> str:
    if len(ranks) > 4:
        return f"{len(ranks)} of its ranks"
    return " and ".join(f"its rank {rank.rank} (process {rank.pid} on {rank.host})" for rank in ranks)
