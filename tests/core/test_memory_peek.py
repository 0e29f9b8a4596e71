"""When the memory cgroup is read in full: as often as its memory changes, and no more."""

from __future__ import annotations

from diag.agent.memory_sampler import MemoryPeek, watchers
from diag.model import Placement
from diag.model.observations import CgroupMemory, RankExited
from diag.state.rank import RankState

GIB = 1 << 30


def readings(peek: MemoryPeek, needed: list[int], limit: int | None = None, every: float = 0.5) -> int:
    return sum(peek.due(value, limit, number * every) for number, value in enumerate(needed))


def test_memory_that_stands_is_read_once() -> None:
    assert readings(MemoryPeek(), [GIB] * 1000) == 1


def test_a_rise_and_a_fall_are_read_at_each_look() -> None:
    assert readings(MemoryPeek(), [GIB, 2 * GIB, 3 * GIB, 3 * GIB, GIB, GIB]) == 4


def test_what_the_allocator_takes_and_gives_is_no_change() -> None:
    assert readings(MemoryPeek(), [GIB, GIB + (4 << 20)] * 50) == 1


def test_a_slow_leak_is_read_when_it_has_come_to_something() -> None:
    assert readings(MemoryPeek(), [GIB + number * (1 << 20) for number in range(80)]) == 10


def test_what_changes_for_minutes_on_end_is_read_less_often() -> None:
    peek = MemoryPeek()
    readings(peek, [number * GIB for number in range(600)])

    assert readings(peek, [number * GIB for number in range(600, 640)], every=0.5) <= 12


def test_the_beginning_of_a_rise_is_a_surge_and_its_middle_is_not() -> None:
    peek, surges = MemoryPeek(), []

    for number, value in enumerate([4, 4, 5, 6, 7, 7, 4, 4, 5]):
        peek.due(value * GIB, None, number * 0.5)
        surges.append(peek.surges)

    assert surges == [False, False, True, False, False, False, False, False, True]


def test_a_rise_near_the_limit_is_looked_at_more_often_until_it_is_over() -> None:
    peek = MemoryPeek()
    peek.due(4 * GIB, 10 * GIB, 0.0)
    peek.due(8 * GIB, 10 * GIB, 0.5)
    assert peek.seconds < 0.2

    peek.due(8 * GIB, 10 * GIB, 0.65)

    assert peek.seconds == 0.5


def rank(number: int, path: str | None, limit: int = GIB) -> RankState:
    state = RankState(Placement(number, number, 4, "node-0", 1000 + number))
    state.cgroup = None if path is None else CgroupMemory(number, 2, path, 0, limit, None, 0)
    return state


def test_one_living_rank_of_each_cgroup_watches() -> None:
    ranks = [rank(0, "/a"), rank(1, "/a"), rank(2, "/b"), rank(3, "/b")]
    assert watchers(ranks) == {0, 2}

    ranks[0].exit = RankExited(0, 1000, 0, None, "pidfd")

    assert watchers(ranks) == {1, 2}


def test_without_a_cgroup_one_rank_watches_the_host() -> None:
    assert watchers([rank(2, None), rank(3, None)]) == {2}
