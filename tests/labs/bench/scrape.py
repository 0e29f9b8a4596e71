"""What a scrape of /metrics costs, against an app that serves as many series with prometheus_client, scraped
in turns."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from .machine import cost
from .stats import interval
from .table import Row

__all__ = ["fetched", "rows", "series_in"]

_COUNT = 40  # scrapes in one reading of the CPU clock, which counts in hundredths of a second
_GOAL_SECONDS, _GOAL_TIMES = 0.0003, 1 / 3


def rows(hub: tuple[int, str], app: tuple[int, str], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Pid and URL of each, both with as many series."""
    text = fetched(hub[1])
    series = series_in(text)
    say(f"scrapes of {series} series, {rounds} times {_COUNT}")
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_scrapes(*hub))
        theirs.append(_scrapes(*app))
    latest = _generate_latest(text)
    cpu, peer = interval([one[1] for one in ours]), interval([one[1] for one in theirs])
    wall, peer_wall = interval([one[0] for one in ours]), interval([one[0] for one in theirs])
    bare = f"bare FastAPI + prometheus_client, {series_in(fetched(app[1]))} series"
    met = cpu.mid < _GOAL_SECONDS and cpu.mid < _GOAL_TIMES * peer.mid
    return [
        Row(f"CPU of a scrape of {series} series", f"{1000 * cpu.mid:.2f} ms", f"{bare}: {1000 * peer.mid:.2f} ms; "
            f"`generate_latest` alone: {1000 * latest:.2f} ms", f"{cpu.mid / peer.mid:.2g}", "< 0.3 ms and 1/3 x",
            "met" if met else "missed", {"diag": cpu.mid, "peer": peer.mid, "generate_latest": latest, "series": series}, "P13"),
        Row(f"time of a scrape of {series} series", f"{1000 * wall.mid:.1f} ms", f"{bare}: {1000 * peer_wall.mid:.1f} ms",
            f"{wall.mid / peer_wall.mid:.2g}", values={"diag": wall.mid, "peer": peer_wall.mid}, key="scrape time"),
    ]  # fmt: skip


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def series_in(text: str) -> int:
    """
    >>> series_in("# HELP a b\\na 1\\na{b=\\"c\\"} 2\\n")
    2
    """
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def _scrapes(pid: int, url: str) -> tuple[float, float]:
    """Wall and CPU seconds of one."""
    before, began = cost(pid).cpu, time.perf_counter()
    for _ in range(_COUNT):
        fetched(url)
    return (time.perf_counter() - began) / _COUNT, (cost(pid).cpu - before) / _COUNT


def _generate_latest(text: str) -> float:
    """CPU of prometheus_client for these very series, once they stand ready."""
    families = list(text_string_to_metric_families(text))

    class Ready:
        def collect(self) -> list[object]:
            return list(families)

    registry = CollectorRegistry()
    registry.register(Ready())  # type: ignore[arg-type]
    began = time.process_time()
    for _ in range(20):
        generate_latest(registry)
    return (time.process_time() - began) / 20
