"""Stacks recorded on GPUs (tests/captures), for ranks that stand in them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from diag.model import Record
from diag.model.observations import StackSample, ThreadStack
from diag.sources.stacks import remote_stack
from diag.state.stack_activity import Activity, read_stack

__all__ = ["Stack", "recorded_stacks"]

# Frames outermost first: function, file, line.
Stack = list[tuple[str, str, int]]

_CAPTURES = Path(__file__).parents[2] / "captures"
_RUNS = ("h200-live/healthy-saves", "h200-live/data-hang-ras", "gpu-drills/slow-rank")
_FAULT = "before_step"  # of the drill: what made that rank slow
_WORK = (Activity.OTHER, Activity.BACKWARD, Activity.GPU_SYNC)
_MOST_FRAMES = 52


def recorded_stacks() -> dict[str, list[Stack]]:
    """By what they show: work and waits of a training step, its wait for data, a save, what a DataLoader
    worker does (waits, reads), and threads of a rank beside its main one."""
    found: dict[str, dict[tuple[str, ...], Stack]] = {}
    for sample in _samples():
        for thread in sample.threads:
            kind = _kind(sample, thread)
            if kind and len(thread.frames) <= _MOST_FRAMES:
                stack = [(frame.function, frame.file, frame.line) for frame in thread.frames]
                found.setdefault(kind, {}).setdefault(tuple(function for function, _, _ in stack), stack)
    return {kind: list(stacks.values()) for kind, stacks in sorted(found.items())}


def _samples() -> Iterator[StackSample]:
    for run in _RUNS:
        for path in sorted((_CAPTURES / run).glob("journal-*.jsonl.gz")):
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    told = json.loads(line)
                    if told.get("source") == remote_stack.SOURCE:
                        record = Record(told["source"], told["payload"], rank=told.get("rank"), at=told["at"])
                        yield from (
                            fact for fact in remote_stack.parse(record) if isinstance(fact, StackSample)
                        )


def _kind(sample: StackSample, thread: ThreadStack) -> str:
    functions = {frame.function.rpartition(".")[2] for frame in thread.frames}
    if thread.name != "MainThread":
        waits = functions & {"wait", "_recv_msg", "read", "poll", "select"}
        return "thread" if sample.parent_pid is None and waits and len(functions) > 2 else ""
    if sample.parent_pid is not None:
        if "_worker_loop" not in functions:
            return ""
        return "worker-reads" if "fetch" in functions else "worker-waits"
    activity = read_stack(thread).activity
    if "save_checkpoint" in functions:
        return "save" if activity in (Activity.CHECKPOINT, Activity.COLLECTIVE) else ""
    if "train_step" not in functions or _FAULT in functions:
        return ""
    if activity is Activity.COLLECTIVE:
        return "wait"
    if activity is Activity.DATA:
        return "data" if "_try_get_data" in functions else ""
    return "work" if activity in _WORK else ""
