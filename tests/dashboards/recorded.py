"""Recorded data for a real Prometheus: journals of real jobs go through the engine, and what a hub would have
served each second is put into blocks by promtool, at the times of then and with the labels that a target has.
"""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import diag
from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader
from diag.model import Record
from diag.model.observations import GpuHealth, GpuSample, Iteration, NvlinkSeen, ProcessTree, XidReported
from diag.outputs.prometheus.prometheus import families
from diag.outputs.view.view import ClusterFacts, Counters
from diag.sources.parsers import PARSERS
from tests.live.prometheus import PROMTOOL
from tests.outputs import conftest as kit

__all__ = ["JOBS", "Recorded", "write_blocks"]

CAPTURES = Path(__file__).parents[1] / "captures"
EVERY_SECONDS = 1.0

# The name of a job, and its nodes' journals.
JOBS: dict[str, tuple[str, ...]] = {
    "saves": ("h200-live/healthy-saves/journal-000001.jsonl.gz",),
    "data-hang": ("h200-live/data-hang/journal-000001.jsonl.gz",),
    "rank-killed": ("h200-live/rank-killed/journal-000001.jsonl.gz",),
    "no-device-nodes": ("h200-net/no-device-nodes-node0/journal-000001.jsonl.gz",
                        "h200-net/no-device-nodes-node1/journal-000001.jsonl.gz"),
    "mixed-networks": ("h200-net/mixed-node0/journal-000001.jsonl.gz", "h200-net/mixed-node1/journal-000001.jsonl.gz"),
    "port-goes-down": ("sources/rdma/journal-port_goes_down.jsonl.gz",),
    "save-too-large": ("memory/save-too-large/journal-000001.jsonl.gz",),
    "pod-limit": ("memory/v2/journal-pod_limit.jsonl.gz",),
    "pids-limit": ("memory/v2/journal-pids_limit.jsonl.gz",),
    "slow-from-step": ("steps/slow-from-step/journal-000001.jsonl.gz",),
}  # fmt: skip
# What real hubs served at /metrics, every two seconds, each followed by "# at SECONDS": their own cost is in
# no journal.
SERVED = {"bundled-job": "metrics/bundled-job.txt.gz"}
# Troubles of GPUs that no recorded job had: a hub is told of them.
TOLD = "gpu-troubles"


@dataclass(frozen=True, slots=True)
class Recorded:
    """When a job's samples begin and end."""

    job_id: str
    start: float
    end: float


@dataclass
class _View:
    """As much of a hub as metrics need."""

    engine: Engine
    counters: Counters = field(default_factory=Counters)
    version: str = diag.__version__
    lock: Any = field(default_factory=threading.RLock)
    run_id: str = "recorded"
    started_at: float = 0.0
    token: str | None = None
    bound_beyond_loopback: bool = False

    @property
    def cluster(self) -> _View:
        return self

    def facts(self) -> ClusterFacts:
        """A job of two nodes, of which this one judges."""
        active = tuple((finding.id, finding.severity.value) for finding in self.engine.active())
        sent = self.counters.records_total
        return ClusterFacts(
            True, 2, 2, active, {("sent", "ok"): sent, ("taken", "ok"): sent}, {"sent": 900 * sent}, 0.004
        )


def _of_journal(path: Path) -> Iterator[tuple[float, Iterable[Sample]]]:
    view = _View(Engine(PARSERS, make_detectors(), PRECEDENCE))
    due = 0.0
    for record in JournalReader([path]):
        while due and due <= record.at:
            view.engine.advance(due)
            yield due, _samples(view)
            due += EVERY_SECONDS
        view.engine.feed(record)
        view.counters.records_total += 1
        view.counters.log_lines_total = view.engine.job.log.lines
        due = due or math.ceil(record.at)
    view.engine.finish()
    yield due, _samples(view)


def _samples(view: Any) -> list[Sample]:
    return [sample for family in families(view) for sample in family.samples]


def _of_served(path: Path) -> Iterator[tuple[float, Iterable[Sample]]]:
    lines: list[str] = []
    with gzip.open(path, "rt") as file:
        for line in file:
            if line.startswith("# at "):
                found = text_string_to_metric_families("".join(lines))
                yield float(line[5:]), [sample for family in found for sample in family.samples]
                lines = []
            else:
                lines.append(line)


def _told(start: float) -> Iterator[tuple[float, Iterable[Sample]]]:
    hub = kit.FakeHub()
    hub.tell(start - 1, *(kit.found(rank, 2) for rank in range(2)))
    for second in range(30):
        at = start + second
        for rank in range(2):
            tree = ProcessTree(
                rank, kit.process(750 + rank, 10.0 + second), (), at, 214, 5 * kit.GIB, 2 * kit.GIB, 0
            )
            hub.tell(at, tree, kit.stack(rank, kit.IN_ALL_REDUCE))
            bad = rank == 1 and second >= 10
            uuid, bus, clock = f"GPU-{rank}", f"0000:{rank:02x}:00.0", 900_000_000 if bad else 1_980_000_000
            gpu = GpuSample(None, rank, uuid, bus, "H200", 0.9, 6 * kit.GIB, 141 * kit.GIB, 300.0, 700.0, clock,
                            92.0 if bad else 60.0, 0x44 if bad else 0, (750 + rank,))  # fmt: skip
            health = GpuHealth(
                None,
                rank,
                uuid,
                bus,
                ecc_corrected_volatile=3,
                remap_pending=bad,
                ecc_uncorrected_volatile=2 if bad else 0,
                thermal_violation_seconds=0.5 * max(0, second - 10) if bad else 0.0,
                power_violation_seconds=0.0,
                memory_celsius=70.0,
                nvlinks=(NvlinkSeen(0, True), NvlinkSeen(1, not bad)),
            )
            for fact in (gpu, health):
                hub.engine.feed(Record("told", fact, at=at))
        # Megatron's own line
        step = Iteration(None, 1 + second, 100, f"{1 + second}/100", (("global batch size", 64.0),))
        hub.engine.feed(Record("told", step, at=at))
        if second == 12:
            hub.engine.feed(Record("told", XidReported(None, "0000:01:00", 79, None, "NVRM: Xid"), at=at))
        yield at, _samples(hub)


def _moments(start: float) -> Iterator[tuple[str, str, Iterator[tuple[float, Iterable[Sample]]]]]:
    """(job, node, what its hub served)"""
    for job_id, paths in JOBS.items():
        for index, path in enumerate(paths):
            yield job_id, f"node{index}", _of_journal(CAPTURES / path)
    for job_id, path in SERVED.items():
        yield job_id, "node0", _of_served(CAPTURES / path)
    yield TOLD, "node0", _told(start)


def write_blocks(folder: Path) -> list[Recorded]:
    """Fill a Prometheus' data directory; when each job was."""
    assert PROMTOOL
    text, spans = folder / "recorded.txt", dict[str, list[float]]()
    folder.mkdir(parents=True, exist_ok=True)
    with text.open("w") as file:
        for job_id, node, moments in _moments(1795300000.0):
            for at, samples in moments:
                _write(
                    file,
                    at,
                    (("job", "diag"), ("job_id", job_id), ("node", node), ("instance", f"{node}:9095")),
                    samples,
                )
                spans.setdefault(job_id, []).append(at)
        file.write("# EOF\n")
    words = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    made = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return [Recorded(job_id, min(times), max(times)) for job_id, times in spans.items()]


def _write(file: IO[str], at: float, target: tuple[tuple[str, str], ...], samples: Iterable[Sample]) -> None:
    for sample in [Sample("up", {}, 1.0), *samples]:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in (*target, *sample.labels.items()))
        value = sample.value
        number = (
            repr(float(value))
            if math.isfinite(value)
            else ("+Inf" if value > 0 else "-Inf" if value < 0 else "NaN")
        )
        file.write(f"{sample.name}{{{labels}}} {number} {at:.3f}\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def record_served(url: str, path: Path, seconds: float) -> None:
    """Record what a hub serves: python -m tests.dashboards.recorded URL FILE SECONDS"""
    import time
    import urllib.error
    import urllib.request

    until = time.monotonic() + seconds
    with gzip.open(path, "wt") as file:
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
                    file.write(
                        "".join(
                            line + "\n" for line in answer.read().decode().splitlines() if line[:1] != "#"
                        )
                    )
            except urllib.error.URLError:
                return
            file.write(f"# at {time.time():.3f}\n")
            time.sleep(2.0)


if __name__ == "__main__":
    record_served(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
