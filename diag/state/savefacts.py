"""The save under way in numbers, for the outputs: since when, how much is written, when it should end. Judges
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.state.view import JobView

__all__ = ["save_json", "save_words"]


def save_json(job: JobView, now: float) -> dict[str, Any] | None:
    """None while nothing is saved. Numbers that nobody could read are null."""
    save = job.saves.log.current or job.saves.log.unwritten
    if save is None or job.returncode is not None:
        return None
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
        "usual_bytes": max(
            (folder.size_bytes for seen in job.saves.folders.values() for folder in seen.folders),
            default=None,
        ),
    }


def save_words(save: Mapping[str, Any]) -> str:
    """
    >>> save_words({"seconds": 12.4, "usual_seconds": 30.0, "written_bytes": 3 << 30, "usual_bytes": 6 << 30,
    ...             "bytes_per_second": 2.5e8, "asynchronous": False})
    'saving for 12 s (usually 30 s), 3.0 of 6.0 GiB written, 0.23 GiB/s'
    """
    words = f"saving for {save['seconds']:.0f} s" + (" behind the training" if save["asynchronous"] else "")
    if save["usual_seconds"] is not None:
        words += f" (usually {save['usual_seconds']:.0f} s)"
    written, usual, rate = save["written_bytes"], save["usual_bytes"], save["bytes_per_second"]
    unit, name = (1 << 30, "GiB") if max(written or 0, usual or 0) >= 1 << 29 else (1 << 20, "MiB")
    if written is not None:
        of = f" of {usual / unit:.1f}" if usual and usual > written else ""
        words += f", {written / unit:.1f}{of} {name} written"
    return words + (f", {rate / unit:.2f} {name}/s" if rate else "")
