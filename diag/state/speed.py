"""How fast a job trains for what it computes: tokens a second and the share of the GPUs' peak, beside published runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from diag.knowledge import peak_of
from diag.state.view import JobView
from diag.text.units import format_ratio, format_seconds


def speed_json(job: JobView) -> dict[str, Any] | None:
    """None before steps were measured, and of a log alone, where neither the command nor a GPU was seen.
    `tokens_per_gpu_second` and `mfu` are bounds from above where `at_most`: samples may be shorter than CMD allows;
    None where `not_checked` says why."""
    seconds = job.progress.steps.now()
    estimated = job.machine.memory_estimate
    plan = estimated.speed if estimated is not None else None
    names = sorted({sample.name for _, sample in job.machine.gpus.values() if sample.name})
    if not seconds or not (estimated or names):
        return None
    found: dict[str, Any] = {
        "step_seconds": round(seconds, 4), "gpu": names[0] if len(names) == 1 else None, "tokens_per_gpu_second": None,
        "mfu": None, "at_most": None, "not_checked": None, "published": [],
    }  # fmt: skip
    if not plan:
        found["not_checked"] = "the command is not known, or not its model: tokens of a step are not"
        return found
    tokens = plan.step_tokens / plan.ranks / seconds
    found.update(
        tokens_per_gpu_second=round(tokens, 1),
        at_most=not plan.packed,
        published=[asdict(run) for run in plan.published],
    )
    peak = peak_of(names[0]) if len(names) == 1 else None
    if peak is None:
        which = "GPUs of several kinds" if names[1:] else f"the peak of {names[0]}" if names else "the GPU"
        found["not_checked"] = f"{which}{'' if names[1:] else ' is not known'}: no share of its peak"
    else:
        found["mfu"] = round(plan.step_flops / plan.ranks / seconds / peak / 1e12, 4)
    return found


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
