"""Who comes last to collectives, by recorders of real NCCL and by made ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from diag.model import Record
from diag.model.observations import FlightRecorder
from diag.outputs.view.steps_view import arrivals_json
from diag.sources.collectives import flight_recorder
from diag.state.arrivals import Arrivals, arrivals
from tests.core.test_waitgraph import call, recorder
from tests.facts import Story

FOLDER = Path(__file__).parents[1] / "captures" / "fr"


def read(name: str, rank: int) -> FlightRecorder:
    payload = flight_recorder.load_file(FOLDER / f"{name}_{rank}")
    return next(fact for fact in flight_recorder.parse(Record(flight_recorder.SOURCE, payload, rank=rank, at=1000.0))
                if isinstance(fact, FlightRecorder))  # fmt: skip


def of_capture(name: str) -> Arrivals | None:
    return arrivals({rank: read(name, rank) for rank in (0, 1)})


def at(rank: int, times: list[float], group: str = "0") -> FlightRecorder:
    entries = [
        dataclasses.replace(call(group, seq), time_created=time) for seq, time in enumerate(times, 1) if time
    ]
    return recorder(rank, entries)


def test_real_calls_that_both_ranks_made_are_compared_and_those_of_the_hang_are_not() -> None:
    """Two H200, NCCL 2.28.9: rank 0 is behind in the first steps, rank 1 by some 0.16 ms in the last 8."""
    found = of_capture("data_hang")

    assert found is not None and (found.calls, found.ranks) == (25, (0, 1))
    assert [(each.rank, each.times) for each in found.last] == [(0, 17), (1, 8)]
    assert 1e-4 < found.last[1].seconds < 2e-4


def test_real_ranks_that_take_turns_both_count() -> None:
    found = of_capture("skip_collective")

    assert found is not None
    assert {each.rank: each.times for each in found.last} == {1: 17, 0: 4}


def test_slow_rank_is_last_with_what_it_costs_and_calls_of_only_some_are_left_out() -> None:
    found = arrivals({
        0: at(0, [10.0, 20.0, 30.0, 40.0, 50.0]), 1: at(1, [10.5, 20.4, 30.6, 40.5, 0.0]),
        2: at(2, [10.1, 20.0, 30.0, 40.9, 50.0]),
    })  # fmt: skip

    assert found is not None and found.calls == 4
    assert [(each.rank, each.times) for each in found.last] == [(1, 3), (2, 1)]
    assert abs(found.last[0].seconds - 0.5) < 1e-6


def test_few_calls_one_rank_or_no_times_say_nothing() -> None:
    assert arrivals({0: at(0, [1.0, 2.0]), 1: at(1, [1.1, 2.1])}) is None
    assert arrivals({0: at(0, [1.0, 2.0, 3.0, 4.0])}) is None
    assert arrivals({0: at(0, [0.0] * 9), 1: at(1, [0.0] * 9)}) is None


def test_dump_says_who_came_last_while_the_recorders_are_fresh() -> None:
    story = Story([])
    assert arrivals_json(story.engine) is None
    for rank in (0, 1):
        story.tell(read("data_hang", rank))
    told = arrivals_json(story.engine)

    assert told is not None and told["last"][0]["rank"] == 0
    assert told["text"].startswith(
        "arrival at 25 collectives of 2 ranks: rank 0 arrived last at 17 of them, 14.5 ms after"
    )
    story.wait(300)
    assert arrivals_json(story.engine) is None
