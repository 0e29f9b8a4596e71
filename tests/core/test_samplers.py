"""The one runner of all samplers: timing, what cannot be read, and faults of our own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from diag.agent.samplers.sampler import Reporter, Sampler
from diag.model import Payload, Record
from diag.text.errors import SourceUnavailable


class Scripted(Sampler):
    """Reads what it is given, one a time; of an exception it fails."""

    name, what, sources = "scripted", "the thing", ("thing",)

    def __init__(self, records: list[Record], *readings: Payload | Exception, every: float = 0.0) -> None:
        super().__init__(Reporter(records.append, "here", sampled=lambda *one: self.took.append(one)), every)
        self.took: list[tuple[str, float]] = []
        self.ended = threading.Event()
        self._readings = iter(readings)

    def sample(self) -> None:
        reading = next(self._readings, None)
        if reading is None:
            self.stop()
            return
        self.read(self.what, "thing", lambda: give(reading))

    def tidy(self) -> None:
        self.ended.set()


def give(reading: Payload | Exception) -> Payload:
    if isinstance(reading, Exception):
        raise reading
    return reading


def events(records: list[Record]) -> list[str]:
    return [f"{one.payload['event']} {one.payload.get('reason', '')}".strip() if one.source == "run" else "read"
            for one in records]  # fmt: skip


def run(make: Callable[[list[Record]], Scripted]) -> tuple[Scripted, list[Record]]:
    records: list[Record] = []
    sampler = make(records)
    sampler.start()
    assert sampler.ended.wait(20.0)
    return sampler, records


def test_what_cannot_be_read_is_reported_once_a_reason_and_taken_back() -> None:
    gone, denied = SourceUnavailable("gone", "look"), SourceUnavailable("denied")

    sampler, records = run(lambda records: Scripted(records, {}, gone, gone, denied, {}, {}))

    assert events(records) == ["read", "failed gone", "failed denied", "read", "works", "read"]
    assert records[1].payload["remedy"] == "look" and records[1].host == "here"
    assert [source for source, _ in sampler.took] == ["thing"] * 3


def test_fault_of_ours_in_one_reading_is_reported_and_the_next_one_is_made() -> None:
    _, records = run(lambda records: Scripted(records, ValueError("seven"), {}))

    assert events(records) == ["failed bug in diag: ValueError: seven", "read", "works"]


def test_fault_of_ours_outside_of_a_reading_ends_this_sampler_and_is_reported() -> None:
    class Faulty(Scripted):
        def sample(self) -> None:
            raise ValueError("seven")

    _, records = run(Faulty)

    assert events(records) == ["failed bug in diag: ValueError: seven"]


def test_it_waits_between_readings_until_it_is_woken_or_stopped() -> None:
    records: list[Record] = []
    sampler = Scripted(records, {}, {}, {}, every=3600.0)
    sampler.start()
    until(lambda: len(records) == 1)

    sampler.wake()
    until(lambda: len(records) == 2)
    sampler.stop()

    assert sampler.ended.wait(20.0) and len(records) == 2


def test_dear_readings_are_made_less_often_but_not_too_seldom() -> None:
    sampler = Scripted([], every=10.0)

    assert [sampler.period(cpu, cpu) for cpu in (0.001, 0.2, 5.0)] == [10.0, 20.0, 60.0]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
