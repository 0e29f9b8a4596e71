"""A real Prometheus scrapes 1,024 hubs' worth of series (8,192 ranks), and answers the dashboards: what both
cost.

DIAG_SCALE_NODES and DIAG_SCALE_SECONDS change the size; the figures are printed and kept in
build/scale-prometheus.md.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.cluster.prometheus.targets import RANKS, Node, real_series
from tests.dashboards.answers import as_grafana
from tests.dashboards.boards import BOARDS
from tests.live.prometheus import Prometheus, needs_prometheus

pytestmark = [pytest.mark.cluster, needs_prometheus, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
NODES = int(os.environ.get("DIAG_SCALE_NODES", "1024"))
# measured, after all targets are up and the window below is full
SECONDS = float(os.environ.get("DIAG_SCALE_SECONDS", "60"))
SCRAPE_SECONDS = int(os.environ.get("DIAG_SCALE_SCRAPE", "15"))
POINTS = 240  # an hour of 15 s: what a panel asks for by default
SLOW_SECONDS = 5.0  # of CPU for one query; 0.5 s here, and up to 1.8 s where ten others used the two cores
RANK = "(0|1|2|3|4|5|6|7)"  # the drill-down draws the ranks that were chosen


@dataclass(frozen=True)
class Measured:
    """What the scrapes cost."""

    prometheus: Prometheus
    targets_up: int
    series: float
    samples_per_second: float
    cpu: float  # cores
    memory_bytes: int
    page_bytes: float
    rules_seconds: float


@dataclass(frozen=True, slots=True)
class Timed:
    """One query. CPU of Prometheus, less what scrapes cost meanwhile, says more than the time where others
    use the machine."""

    seconds: float
    cpu: float
    rows: int
    board: str
    panel: str
    query: str


@pytest.fixture(scope="module")
def generator() -> Iterator[int]:
    words = [sys.executable, "-m", "tests.cluster.prometheus.targets", str(NODES)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="module")
def measured(generator: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("scale")
    nodes = {f"n{number:04}": f"/{number}" for number in range(NODES)}
    groups = [
        {"targets": [f"127.0.0.1:{generator}"],
         "labels": {"__metrics_path__": path, "instance": f"{node}:9095", "job_id": "large", "node": node}}
        for node, path in nodes.items()
    ]  # fmt: skip
    (folder / "targets.json").write_text(json.dumps(groups))
    every = f"{SCRAPE_SECONDS}s"
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(ROOT / "rules" / "alerts" / name) for name in ("diag.yaml", "diag-records.yaml")],
        "scrape_configs": [
            {"job_name": "diag", "file_sd_configs": [{"files": [str(folder / "targets.json")]}]}
        ],
    }
    with Prometheus(folder, config) as prometheus:
        process = psutil.Process(prometheus.process.pid)
        until = time.monotonic() + 300
        while _number(prometheus, "sum(up)") < NODES:
            assert time.monotonic() < until, "not all targets are up"
            time.sleep(1.0)
        time.sleep(2 * SCRAPE_SECONDS)  # what a start costs (new series) is not what running costs
        began, cpu, samples = (
            time.monotonic(),
            _cpu(process),
            _own(prometheus, "prometheus_tsdb_head_samples_appended_total"),
        )
        time.sleep(SECONDS)
        seconds = time.monotonic() - began
        yield Measured(
            prometheus,
            int(_number(prometheus, "sum(up)")),
            _own(prometheus, "prometheus_tsdb_head_series"),
            (_own(prometheus, "prometheus_tsdb_head_samples_appended_total") - samples) / seconds,
            (_cpu(process) - cpu) / seconds,
            process.memory_info().rss,
            len(Node(1, NODES, real_series()).text(time.time())),
            _own(prometheus, "prometheus_rule_group_last_duration_seconds"),
        )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _number(prometheus: Prometheus, expression: str) -> float:
    rows = prometheus.query(expression)
    return float(rows[0]["value"][1]) if rows else 0.0


def _own(prometheus: Prometheus, name: str) -> float:
    """A metric of Prometheus itself, all series of it together."""
    with urllib.request.urlopen(f"http://{prometheus.address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return sum(
        float(value)
        for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        if value != "NaN"
    )


def test_dashboards_of_a_large_job_are_drawn_while_it_is_scraped(measured: Measured) -> None:
    end = time.time() - 1
    start = end - max(60.0, SECONDS)
    rate = f"{4 * SCRAPE_SECONDS}s"
    process = psutil.Process(measured.prometheus.process.pid)
    times: list[Timed] = []
    empty: list[str] = []
    for board in BOARDS:
        for panel in board.panels:
            for query, _ in panel.queries:
                filled = as_grafana(query, "large", rank=RANK, rate=rate)
                began, cpu = time.monotonic(), _cpu(process)
                if panel.kind in ("stat", "table"):
                    rows = measured.prometheus.query(filled, end)
                else:
                    rows = measured.prometheus.query_range(filled, start, end, (end - start) / POINTS)
                seconds = time.monotonic() - began
                cost = max(0.0, _cpu(process) - cpu - measured.cpu * seconds)
                times.append(Timed(seconds, cost, len(rows), board.uid, panel.title, query))
                if not rows:
                    empty.append(query)
    _report(measured, sorted(times, key=lambda one: -one.cpu))

    assert measured.targets_up == NODES
    assert measured.series > NODES * RANKS * 35
    assert measured.samples_per_second > 0.8 * measured.series / SCRAPE_SECONDS  # no scrape was left out
    assert max(one.cpu for one in times) < SLOW_SECONDS
    # that no node has
    troubles = {"diag_gpu_xid_total", "diag_gpu_row_remap_pending", "diag_ib_port_up", "diag_finding_active"}
    assert {name for query in empty for name in re.findall(r"diag_\w+", query)} <= troubles


def test_alerts_of_a_large_job_are_few(measured: Measured) -> None:
    rules = yaml.safe_load((ROOT / "rules" / "alerts" / "diag.yaml").read_text())
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]

    pending = measured.prometheus.query("count by (alertname) (ALERTS)")

    counted = {row["metric"]["alertname"]: int(row["value"][1]) for row in pending}
    assert set(counted) <= set(names)
    # the culprits, not those that wait for them
    assert counted["DiagRankHung"] == math.ceil((NODES * RANKS - 3) / 500)
    assert counted["DiagNcclSocketFallback"] == 1  # of the job, however many ranks it concerns


def _report(measured: Measured, times: list[Timed]) -> None:
    walls = sorted(one.seconds for one in times)
    longest = max(times, key=lambda one: one.seconds)
    lines = [
        f"{NODES:,} targets, {NODES * RANKS:,} ranks, scraped every {SCRAPE_SECONDS} s, {os.cpu_count()} cores shared with the "
        f"generator (load {os.getloadavg()[0]:.1f}).",
        "",
        "| | |", "| --- | --- |",
        f"| series in the head | {measured.series:,.0f} ({measured.series / NODES:.0f} a node) |",
        f"| ingested | {measured.samples_per_second:,.0f} samples/s |",
        f"| a page of /metrics | {measured.page_bytes / 1024:.0f} KiB |",
        f"| CPU of Prometheus | {measured.cpu:.2f} cores, rules included |",
        f"| memory of Prometheus | {measured.memory_bytes / 2**20:,.0f} MiB resident |",
        f"| one evaluation of all rules | {measured.rules_seconds:.2f} s |",
        f"| queries of the dashboards | {len(times)}: median {walls[len(walls) // 2]:.3f} s, 95 % within "
        f"{walls[int(len(walls) * 0.95)]:.2f} s, slowest {walls[-1]:.2f} s ({longest.board}, "
        f"{longest.panel}), all together {sum(one.cpu for one in times):.1f} s of CPU |",
        "", "| queries with most CPU | CPU s | s | rows |", "| --- | --- | --- | --- |",
        *(f"| {one.board}, {one.panel}: `{one.query}` | {one.cpu:.2f} | {one.seconds:.2f} | {one.rows} |" for one in times[:10]),
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "scale-prometheus.md").write_text(text)
    print("\n" + text)
