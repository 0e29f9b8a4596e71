"""The speed of a job (`diag.state.speed`) for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.text.units import format_ratio, format_seconds


def speed_lines(speed: Mapping[str, Any]) -> list[str]:
    """What `speed_json` gave, for people.

    >>> speed = {"step_seconds": 13, "tokens_per_gpu_second": 315.1, "at_most": False, "mfu": 0.026, "published": []}
    >>> print(speed_lines({**speed, "gpu": "NVIDIA H100", "not_checked": None})[0])
    speed: 13 s a step, 315 tokens/s a GPU, 2.6 % of the peak of NVIDIA H100 (MFU)
    """
    if speed.get("tokens_per_gpu_second") is None:
        return []
    text = f"speed: {format_seconds(speed['step_seconds'])} a step, {speed_clause(speed)}"
    if speed["mfu"] is None and speed["not_checked"]:
        text += f"; not checked: {speed['not_checked']}"
    if speed["at_most"]:
        text += "; samples may be shorter than CMD allows"
    lines = [text]
    for run in speed["published"]:
        line = f"published for this model: {run['words']}"
        share = _share(speed, run)
        line += f"; this job does {format_ratio(share)} of its tokens a second and GPU" if share else ""
        lines.append(f"{line} ({run['url']})")
    return lines


def speed_clause(speed: Mapping[str, Any]) -> str:
    """Tokens and the share of the peak, "" where tokens are not known."""
    if speed.get("tokens_per_gpu_second") is None:
        return ""
    bound = "at most " if speed["at_most"] else ""
    text = f"{bound}{speed['tokens_per_gpu_second']:,.0f} tokens/s a GPU"
    if speed["mfu"] is not None:
        text += f", {bound}{format_ratio(speed['mfu'])} of the peak of {speed['gpu']} (MFU)"
    return text


def _share(speed: Mapping[str, Any], run: Mapping[str, Any]) -> float | None:
    """Only of a run that trains the same in the same way on GPUs of the same kind, where both have full batches."""
    same = run["alike"] and run["gpu"] and speed["gpu"] and run["gpu"] in speed["gpu"]
    if not same or speed["at_most"] or not run["gpu_tokens_per_second"]:
        return None
    return float(speed["tokens_per_gpu_second"] / run["gpu_tokens_per_second"])
