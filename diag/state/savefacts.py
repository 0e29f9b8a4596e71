"""The save under way in numbers, for the outputs: since when, how much is written, when it should end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.state.view import JobView
from diag.text.units import format_bytes, format_rate, format_seconds


def save_json(job: JobView, now: float) -> dict[str, Any] | None:
    """None while nothing is saved. Numbers that could not be read are null."""
    save = job.saves.log.current or job.saves.log.unwritten
    if save is None or job.returncode is not None:
        return None
    sizes = (folder.size_bytes for seen in job.saves.folders.values() for folder in seen.folders)
    return {
        "path": save.path or None,
        "iteration": save.iteration,
        "began": save.began,
        "seconds": max(0.0, now - save.began),
        "usual_seconds": job.saves.log.usual_seconds(),
        "asynchronous": save.ended is not None,
        "written_bytes": save.growth[-1][1] if save.growth else None,
        "bytes_per_second": save.bytes_per_second,
        "grew_at": save.growth[-1][0] if save.growth else None,
        "usual_bytes": max(sizes, default=None),
    }


def format_save(save: Mapping[str, Any]) -> str:
    """
    >>> format_save({"seconds": 12.4, "usual_seconds": 30.0, "written_bytes": 3 << 30, "usual_bytes": 6 << 30,
    ...             "bytes_per_second": 2.5e8, "asynchronous": False})
    'saving for 12 s (usually 30 s), 3 GiB of 6 GiB written, 238 MiB/s'
    """
    text = f"saving for {format_seconds(save['seconds'])}{' behind the training' if save['asynchronous'] else ''}"
    if save["usual_seconds"] is not None:
        text += f" (usually {format_seconds(save['usual_seconds'])})"
    written, usual, rate = save["written_bytes"], save["usual_bytes"], save["bytes_per_second"]
    if written is not None:
        of = f" of {format_bytes(usual)}" if usual and usual > written else ""
        text += f", {format_bytes(written)}{of} written"
    return text + (f", {format_rate(rate)}" if rate else "")
