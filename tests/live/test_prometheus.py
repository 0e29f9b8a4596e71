"""A real Prometheus (Debian package `prometheus`) scrapes a real server of ours on loopback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diag.engine import Engine
from diag.model import Placement, Record
from diag.observations import Iteration, Observation, RankFound
from diag.outputs.server import serve
from diag.outputs.view import Counters

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
WITHIN_SECONDS = 30.0  # starts in 1 s here; slow machines may take longer

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="no prometheus and promtool here: apt-get install prometheus"),
]


@dataclass
class Hub:
    engine: Engine
    lock: Any = field(default_factory=threading.RLock)
    run_id: str = "live"
    version: str = "0.1.0"
    started_at: float = 0.0
    counters: Counters = field(default_factory=Counters)
    token: str | None = None
    bound_beyond_loopback: bool = False

    async def dump(self, deadline: float) -> dict[str, Any]:
        raise NotImplementedError


@pytest.fixture
def hub() -> Hub:
    def parse(record: Record) -> Iterator[Observation]:
        yield record.payload

    made = Hub(Engine({"told": parse}, []))
    for rank in range(2):
        made.engine.feed(Record("told", RankFound(rank, Placement(rank, rank, 2, "node0", 750 + rank)), at=1000.0))
    made.engine.feed(Record("told", Iteration(None, 41, 100, "41/100"), at=1001.0))
    return made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """A Prometheus of its own that scrapes one target each second."""

    def __init__(self, folder: Path, target: str) -> None:
        assert PROMETHEUS and PROMTOOL
        targets = [{"targets": [target], "labels": {"node": "n0"}}]
        scrape = {"job_name": "diag", "scrape_interval": "1s", "static_configs": targets}
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML
        subprocess.run([PROMTOOL, "check", "config", str(config)], check=True, capture_output=True, timeout=30)
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address={self.address}", "--enable-feature=exemplar-storage"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The answer once there is one."""
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        until = time.monotonic() + WITHIN_SECONDS
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    rows: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                    if rows:
                        return rows
            except urllib.error.URLError:  # not listening yet, or not ready
                pass
            time.sleep(0.1)
        raise AssertionError(f"no answer to {expression} in {WITHIN_SECONDS} s: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def test_prometheus_scrapes_and_answers_with_our_values(hub: Hub, tmp_path: Path) -> None:
    server = serve(hub)
    prometheus = Prometheus(tmp_path, f"127.0.0.1:{server.port}")
    try:
        iteration = prometheus.query("diag_train_iteration")
        states = prometheus.query("diag_rank_state == 1")
        up = prometheus.query("up")
    finally:
        prometheus.stop()
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

    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False, timeout=30)

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
