"""What the page and `diag top` show, in parts that change one by one: `diag.state/1`. Reads a view and judges
nothing.

Nothing here grows with mere time (ages are given as moments), so that what has not changed is not sent again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from diag.engine.engine import Engine
from diag.outputs.report import report
from diag.outputs.view.classes import stack_classes, why_no_stack
from diag.outputs.view.network_view import picked
from diag.outputs.view.view import HubView, ranks_json, rows_of_job
from diag.state.gpustate import gpus_of_ranks

SLOW_PARTS = ("timeline", "nodes")  # large, and they change slowly: read less often
_GPU = (
    *("index", "name", "utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts"),
    "temperature_celsius",
)


def own_parts(view: HubView, *, slow: bool = True) -> dict[str, Any]:
    """All but `nodes` and the ranks of other nodes; without `slow` none of SLOW_PARTS. The caller holds the
    lock."""
    engine = view.engine
    classes = stack_classes(engine)
    document = report(engine, classes)
    del document["job"]["at"]  # the moment at which it was made
    return {
        "now": {"at": engine.now},
        "head": _head(view),
        "report": document,
        "ranks": _rows(engine),
        "stacks": [one.to_json() for one in classes],
        **({"timeline": engine.timeline.to_json(engine.job)} if slow else {}),
    }


def with_others(own: dict[str, Any], view: HubView, *, slow: bool = True) -> dict[str, Any]:
    """The same with what this hub knows of other nodes. Called without the lock, and not on the server's
    loop: where this hub judges the whole job, it waits for the lock under which that takes digests."""
    others = view.cluster.other_ranks()
    if others:
        own["ranks"] = rows_of_job(own["ranks"], list(map(_row, others)))
    return {**own, "nodes": view.cluster.nodes()} if slow else own


def _head(view: HubView) -> dict[str, Any]:
    """What does not change while a run lasts."""
    job = view.engine.job
    return {
        "run_id": view.run_id,
        "version": view.version,
        "recorded": view.recorded,
        "command": shlex.join(job.run.argv),
        "host": job.run.host,
        "started_at": job.run.started_at,
    }


def _rows(engine: Engine) -> list[dict[str, Any]]:
    gpus = gpus_of_ranks(engine.job)
    rows = []
    for full in ranks_json(engine):
        row, rank = _row(full), engine.job.ranks[full["rank"]]
        gpu = gpus.get(rank.rank)
        if gpu is not None:
            row["gpu"] = picked(gpu, *_GPU)
        row["no_stack"] = why_no_stack(engine, rank)
        row["stack_since"] = rank.stack_since or None
        rows.append(row)
    return rows


def _row(full: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `/ranks` without what changes by itself."""
    row = dict(full)
    for name in ("seconds_since_progress", "stack_unchanged_seconds", "seen_at", "stack_at"):
        row.pop(name, None)
    if row.get("cpu_ratio") is not None:
        row["cpu_ratio"] = round(row["cpu_ratio"], 2)
    return row


def changed_rows(
    before: Mapping[int, Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Those that are not as they were."""
    return [row for row in rows if before.get(row["rank"]) != row]


class Unread:
    """Parts that were sent and not yet taken: the latest of each, so that a slow reader does not pile them up.
    Rows of `ranks` replace each other one by one."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._rows: dict[int, Mapping[str, Any]] = {}
        self._whole = False

    def put(self, part: str, value: Any) -> None:
        self._parts[part] = value

    def put_rows(self, rows: Iterable[Mapping[str, Any]], *, whole: bool) -> None:
        """`whole`: there are no other rows. Raises KeyError or TypeError where rows are none."""
        fresh = {row["rank"]: row for row in rows}
        if whole:
            self._rows, self._whole = fresh, True
        else:
            self._rows.update(fresh)

    def take(self) -> dict[str, Any]:
        parts, self._parts = self._parts, {}
        if self._rows or self._whole:
            parts["ranks"] = {"whole": self._whole, "rows": list(self._rows.values())}
            self._rows, self._whole = {}, False
        return parts
