"""The record of an estimate: what is journalled and what its parser makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from diag.engine.engine import Engine
from diag.model import Record
from diag.model.observations import MemoryEstimated, MemoryTerm, Unparsed
from diag.preflight.estimate import estimate
from diag.sources import estimate as source
from diag.sources.parsers import PARSERS

PAYLOAD = estimate(
    ["megatron", "sft", "--model", "Qwen3-8B", "--max_length", "1024"], {"NPROC_PER_NODE": "2"}
).observation()


def test_an_estimate_comes_back_as_it_was_made() -> None:
    (told,) = source.parse(source.record(PAYLOAD, "node0"))
    assert isinstance(told, MemoryEstimated)
    assert told.rank is None and told.basis == PAYLOAD["basis"]
    assert told.gpu[0] == MemoryTerm(
        "weights", PAYLOAD["gpu"][0]["bytes"], PAYLOAD["gpu"][0]["formula"], PAYLOAD["gpu"][0]["source"]
    )
    assert told.save_bytes == sum(term["bytes"] for term in PAYLOAD["save"])
    assert told.checkpoint_bytes == PAYLOAD["checkpoint_bytes"]


def test_the_engine_keeps_it_for_detectors() -> None:
    engine = Engine(PARSERS, [])
    engine.feed(source.record(PAYLOAD, "node0"))
    assert engine.job.memory_estimate is not None
    assert engine.job.memory_estimate.host_bytes > 0


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "x",
        {},
        {"gpu": 1, "host": [], "save": []},
        {"gpu": [1], "host": [], "save": []},
        {"gpu": [{}], "host": [], "save": []},
        {"gpu": [{"name": "x", "bytes": "many"}], "host": [], "save": []},
        {"gpu": [{"name": "x", "bytes": 1e999}], "host": [], "save": []},
        {"gpu": [{"name": "x", "bytes": 1}] * 1000, "host": [], "save": []},
        {**PAYLOAD, "checkpoint_bytes": []},
    ],
)
def test_a_damaged_record_is_unparsed_and_raises_nothing(payload: Any) -> None:
    (told,) = source.parse(Record(source.SOURCE, payload))
    assert isinstance(told, Unparsed)
