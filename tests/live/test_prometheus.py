"""A real Prometheus (Debian package `prometheus`) scrapes a real server of ours on loopback."""

from __future__ import annotations

import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diag.engine.engine import Engine
from diag.model import Placement, Record
from diag.model.observations import Iteration, Observation, RankFound
from diag.outputs.http.server import serve
from diag.outputs.view.view import Counters
from tests.hubview import AloneHub
from tests.live.prometheus import PROMTOOL, Prometheus, needs_prometheus

pytestmark = [pytest.mark.live, needs_prometheus]


@dataclass
class Hub(AloneHub):
    engine: Engine
    lock: Any = field(default_factory=threading.RLock)
    run_id: str = "live"
    version: str = "0.1.0"
    started_at: float = 0.0
    counters: Counters = field(default_factory=Counters)
    token: str | None = None
    bound_beyond_loopback: bool = False

    async def dump(self, deadline: float, *, native: bool = False, scope: str = "job") -> dict[str, Any]:
        raise NotImplementedError


@pytest.fixture
def hub() -> Hub:
    def parse(record: Record) -> Iterator[Observation]:
        yield record.payload

    made = Hub(Engine({"told": parse}, []))
    for rank in range(2):
        made.engine.feed(
            Record("told", RankFound(rank, Placement(rank, rank, 2, "node0", 750 + rank)), at=1000.0)
        )
    made.engine.feed(Record("told", Iteration(None, 41, 100, "41/100"), at=1001.0))
    return made


def test_prometheus_scrapes_and_answers_with_our_values(hub: Hub, tmp_path: Path) -> None:
    server = serve(hub)
    targets = [{"targets": [f"127.0.0.1:{server.port}"], "labels": {"node": "n0"}}]
    scrape = {"job_name": "diag", "scrape_interval": "1s", "static_configs": targets}
    try:
        with Prometheus(
            tmp_path, {"scrape_configs": [scrape]}, "--enable-feature=exemplar-storage"
        ) as prometheus:
            iteration = prometheus.wait_for("diag_train_iteration")
            states = prometheus.wait_for("diag_rank_state == 1")
            up = prometheus.wait_for("up")
    finally:
        server.stop()

    assert [row["value"][1] for row in iteration] == ["41"]
    assert {(row["metric"]["rank"], row["metric"]["state"], row["metric"]["node"]) for row in states} == {
        ("0", "running", "n0"),
        ("1", "running", "n0"),
    }
    assert [row["value"][1] for row in up] == ["1"]


def test_promtool_finds_nothing_to_correct(hub: Hub) -> None:
    assert PROMTOOL
    server = serve(hub)
    try:
        with urllib.request.urlopen(server.url + "/metrics", timeout=10) as answer:
            text = answer.read()
    finally:
        server.stop()

    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False, timeout=30
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
