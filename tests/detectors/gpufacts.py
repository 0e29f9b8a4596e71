"""Builders for what GPUs tell; defaults are those of an H200 that trains (driver 580.159.04, 2026-11-21)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diag.model import Record
from diag.model.observations import (
    CudaErrorRaised,
    CudaOutOfMemory,
    GpuHealth,
    GpuSample,
    NvlinkSeen,
    XidReported,
)
from diag.sources.logs.line_facts import read_text
from tests.facts import Story, pid_of

GIB = 1 << 30
BUSES = ("00000000:00:06.0", "00000000:00:07.0", "00000000:00:08.0", "00000000:00:09.0")


def sample(index: int, **changes: Any) -> GpuSample:
    """GPU `index` is rank `index`'s, and works."""
    gpu = GpuSample(
        None,
        index,
        f"GPU-{index}",
        BUSES[index],
        "NVIDIA H200",
        0.97,
        100 * GIB,
        140 * GIB,
        520.0,
        700.0,
        1_755_000_000,
        61.0,
        0,
        (pid_of(index),),
    )
    return replace(gpu, **changes)


def links(*down: int, count: int = 18, **counters: int) -> tuple[NvlinkSeen, ...]:
    return tuple(
        NvlinkSeen(link, link not in down, **{"crc_errors": 0, "replays": 0, "recoveries": 0, **counters})
        for link in range(count)
    )


def health(index: int, **changes: Any) -> GpuHealth:
    gpu = GpuHealth(
        None,
        index,
        f"GPU-{index}",
        BUSES[index],
        True,
        0,
        0,
        0,
        0,
        0,
        0,
        False,
        False,
        None,
        0.0,
        0.0,
        89.0,
        60.0,
        1_980_000_000,
        5,
        5,
        16,
        16,
        0,
        links(),
        "none",
    )
    return replace(gpu, **changes)


def xid(number: int, index: int | None = 0, pid: int | None = None, origin: str = "kmsg") -> XidReported:
    bus = "" if index is None else BUSES[index].removeprefix("0000").removesuffix(".0")
    return XidReported(None, bus, number, pid, f"NVRM: Xid (PCI:{bus}): {number}, ...", origin)


def said(text: str, rank: int | None = None) -> list[Any]:
    """The line and what it tells of CUDA, as a job's output gives them."""
    return list(read_text(text, "stderr", rank))


def training(world: int = 2, iteration: int = 40) -> Story:
    """A job that trains, one GPU a rank."""
    from diag.model.observations import Iteration

    story = Story(world=world)
    story.tell(*(sample(index) for index in range(world)))
    story.tell(Iteration(None, iteration, 100, f"iteration {iteration}/100"))
    return story


__all__ = [
    "BUSES",
    "GIB",
    "CudaErrorRaised",
    "CudaOutOfMemory",
    "Record",
    "health",
    "links",
    "said",
    "sample",
    "training",
    "xid",
]
