"""How fast a job trains for what it computes: tokens a second and the share of the GPUs' peak, beside published runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from diag.knowledge import peak_of
from diag.state.view import JobView


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
