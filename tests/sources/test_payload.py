"""Payloads as typed values: what fits is taken, what does not is `Unparsed` or none, and nothing raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diag.model import Record
from diag.model.observations import Observation, RankExited, SourceWorks, Unparsed
from diag.sources.payload import UNFIT, from_mapping, guarded, integer, texts, whole, wholes


def test_dataclass_is_filled_by_the_types_of_its_fields() -> None:
    data = {
        "pid": "812",
        "exit_code": None,
        "signal": 9,
        "how": "zombie",
        "last": ["a", 1],
        "other": "not of it",
    }

    assert from_mapping(RankExited, data, rank=3) == RankExited(3, 812, None, 9, "zombie", None, ("a", "1"))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"pid": "x", "exit_code": 1, "signal": None, "how": ""},
        {"pid": 1, "exit_code": 1, "signal": None, "how": "", "last": "text"},
        {"pid": 1, "exit_code": [1], "signal": None, "how": ""},
    ],
)
def test_what_does_not_fit_raises_what_a_guarded_parser_catches(data: dict[str, Any]) -> None:
    with pytest.raises(UNFIT):
        from_mapping(RankExited, data, rank=None)


def test_guarded_parser_reports_a_damaged_payload_after_the_facts_that_it_had() -> None:
    @guarded("exits")
    def parse(record: Record) -> Iterator[Observation]:
        yield SourceWorks(record.rank, "exits")
        yield from_mapping(RankExited, record.payload, rank=record.rank)

    works, unparsed = parse(Record("exits", {"pid": []}, rank=1))

    assert works == SourceWorks(1, "exits")
    assert isinstance(unparsed, Unparsed) and unparsed.source == "exits" and len(unparsed.excerpt) <= 200
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert isinstance(list(parse(Record("exits", deep)))[-1], Unparsed)
    while deep:  # one by one: freeing it at once would go as deep
        deep = deep[0]


@pytest.mark.parametrize(
    ("value", "number"),
    [(0, 0), (7, 7), (-1, None), (True, None), ("7", None), (1 << 64, None), (None, None)],
)
def test_count_is_no_bool_and_not_negative(value: object, number: int | None) -> None:
    assert whole(value) == number


def test_numbers_and_texts_of_strangers() -> None:
    assert [integer(value) for value in ("12", 12, "x", None, 1.5, True)] == [12, 12, 0, 0, 0, 0]
    assert texts(["a", 1, "bcd"], 2) == ("a", "bc") and texts("ab") is None
    assert wholes({"a": 1, "b": 2}, "a", "b") == [1, 2] and wholes({"a": 1}, "a", "b") is None
    assert wholes(None, "a") is None
