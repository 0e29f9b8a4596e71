"""Output that comes faster than the hub reads it: what waits is bounded, what is left out is counted, the end
is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diag.agent.log_backlog import Intake
from diag.sources.logs.output import FileFollower


class Hub:
    """Takes payloads, and has read them when it is told to."""

    def __init__(self, most_bytes: int) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.told: list[int] = []
        self._when_read: list[Callable[[], None]] = []
        self.intake = Intake(self._put, self.told.append, most_bytes=most_bytes)

    def _put(self, payload: dict[str, Any], then: Callable[[], None]) -> None:
        self.payloads.append(payload)
        self._when_read.append(then)

    def read_all(self) -> None:
        while self._when_read:
            self._when_read.pop()()

    @property
    def lines(self) -> list[str]:
        return [
            line for payload in self.payloads for text, _ in payload["lines"] for line in text.split("\n")
        ]


def chunks(count: int) -> list[bytes]:
    """Of 100 lines each; a chunk begins and ends within a line."""
    whole = b"".join(b"line %07d %s\n" % (number, b"x" * 500) for number in range(count * 100))
    size = len(whole) // count
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def test_what_waits_is_bounded_and_each_line_is_read_or_counted() -> None:
    hub = Hub(1 << 20)
    pieces = chunks(400)  # 20 MB

    for piece in pieces:
        hub.intake.take("both", piece)
    waiting = len(hub.lines)
    hub.read_all()
    hub.intake.end()

    assert waiting * 514 < 1.2 * (1 << 20)
    numbers = [int(line.split()[1]) for line in hub.lines]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0 and numbers[-1] == 39_999
    assert len(numbers) - waiting > 400  # the last 256 KiB
    assert all(len(line) == 513 for line in hub.lines)  # no line is made of two halves
    assert 0 <= 40_000 - len(numbers) - hub.told[-1] <= 2 and hub.intake.dropped_lines == hub.told[-1]


def test_reading_goes_on_where_the_flood_is_over() -> None:
    hub = Hub(1 << 20)
    for piece in chunks(100):
        hub.intake.take("both", piece)
    hub.read_all()

    hub.intake.take("both", b"after the flood\n")

    assert hub.lines[-1] == "after the flood" and hub.lines[-2].startswith("line 0009999")


def test_a_job_that_is_read_as_fast_as_it_prints_loses_nothing() -> None:
    hub = Hub(1 << 20)
    for piece in chunks(100):
        hub.intake.take("both", piece)
        hub.read_all()
    hub.intake.end()

    assert len(hub.lines) == 10_000 and hub.told == [] and hub.intake.dropped_lines == 0


def test_rest_of_a_ranks_own_file_is_read_from_near_its_end(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"")
    follower = FileFollower(log, "stdout")
    log.write_bytes(b"".join(b"line %07d %s\n" % (number, b"x" * 500) for number in range(40_000)))

    lines = [
        line for payload in follower.read_rest() for text, _ in payload["lines"] for line in text.split("\n")
    ]

    assert 7_000 < len(lines) < 8_400 and lines[-1].startswith("line 0039999")
    assert all(len(line) == 513 for line in lines)
