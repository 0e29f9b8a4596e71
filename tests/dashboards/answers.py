"""The recorded jobs in a real Prometheus, and what it answers to a query of a dashboard as Grafana would put
it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from tests.dashboards.recorded import EVERY_SECONDS, Recorded, write_blocks
from tests.live.prometheus import Prometheus
from tests.live.queries import inlined

__all__ = ["Answers", "as_grafana"]

_RATE_SECONDS = 12  # four scrapes at least, as Grafana reckons


def as_grafana(
    query: str, job_id: str, node: str = ".*", rank: str = ".*", rate: str = f"{_RATE_SECONDS}s"
) -> str:
    """The query with the dashboard's variables filled in."""
    for name, value in (("$job_id", job_id), ("$node", node), ("$rank", rank), ("$__rate_interval", rate)):
        query = query.replace(name, value)
    return query


class Answers:
    """A Prometheus as long as the block lasts; `jobs` are those that were recorded."""

    def __init__(self, folder: Path) -> None:
        self._spans = {span.job_id: span for span in write_blocks(folder)}
        # Samples stop where a series ended; a scrape would have said so, blocks of promtool do not.
        self._prometheus = Prometheus(folder, {"scrape_configs": []}, "--query.lookback-delta=4s")

    def __enter__(self) -> Answers:
        self._prometheus.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._prometheus.__exit__(*error)

    @cached_property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self._spans)

    def span(self, job_id: str) -> Recorded:
        return self._spans[job_id]

    def ask(self, query: str, job_id: str, *, cut: float = 0.0) -> list[dict[str, Any]]:
        """The answer over the job's whole time, or to `cut` seconds before its end."""
        span = self._spans[job_id]
        filled = as_grafana(inlined(query).replace("[5m]", f"[{_RATE_SECONDS}s]"), job_id)
        return self._prometheus.query_range(filled, span.start, span.end - cut, EVERY_SECONDS)
