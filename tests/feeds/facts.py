"""Changes of findings as findings.jsonl has them, and what is told of them."""

from __future__ import annotations

from typing import Any

from diag.outputs.feeds.feed import Change, Telling

HANG: dict[str, Any] = {
    "id": "hang", "subject": "job", "class": "data_loading", "severity": "critical", "confidence": "high", "ranks": [3],
    "waiting_ranks": [0, 1, 2], "since": 1000.0, "summary": "rank 3 waits for its data loader", "cause": "worker_blocked",
    "advice": "Look at the workers of rank 3.", "retryable": "unknown", "evidence": [],
}  # fmt: skip
GPU: dict[str, Any] = {
    "id": "gpu-fault", "subject": "GPU 0000:07:00.0", "class": "", "severity": "critical", "confidence": "high", "ranks": [1],
    "waiting_ranks": [], "since": 1000.0, "summary": "Xid 79: the GPU has fallen off the bus", "cause": "xid_79",
    "advice": "Drain the node.", "retryable": "elsewhere", "evidence": [],
}  # fmt: skip
RUN: dict[str, Any] = {"host": "gpu-17", "job_id": "4711", "run_id": "r-1", "run_dir": "/runs/r-1"}


def change(finding: dict[str, Any], kind: str = "opened", at: float = 1000.5, **more: Any) -> dict[str, Any]:
    over = {"resolved_at": at} if kind == "resolved" else {}
    return {"change": kind, "at": at, "opened_at": 1000.5, "finding": {**finding, **over, **more}}


def opened(*changes: Change, **run: Any) -> Telling:
    """Told of these, which are open now."""
    return Telling(changes, tuple(one["finding"] for one in changes), 1000.5, {**RUN, **run})


def over(*changes: Change) -> Telling:
    """Told of these; nothing is open any more."""
    return Telling(changes, (), None, RUN)
