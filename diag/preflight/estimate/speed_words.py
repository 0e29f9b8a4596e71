"""What speed to expect of a command: what a step computes, how long a step was for others, and what share of a GPU's peak
the user's own step is."""

from __future__ import annotations

from diag.knowledge import peak_of
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.speed import speed_json
from diag.preflight.estimate.trust import PUBLISHED
from diag.text.tables import load_table
from diag.text.units import format_quantity, format_ratio, format_seconds


def speed_words(plan: Plan, gpu: str = "", step_seconds: float | None = None) -> list[str]:
    """Empty for what trains nothing."""
    work = speed_json(plan)
    if work is None:
        return []
    bound = "" if work["packed"] else "at most "
    flops = work["step_flops"] / work["ranks"]
    words = [
        f"a step: {bound}{work['step_tokens']:,} tokens, {bound}{format_quantity(flops / 1e12, 'TFLOP')} for each GPU"
        + (", and a third more to compute activations again" if work["recomputes"] else "")
    ]
    peak = peak_of(gpu) if gpu else None
    if gpu and peak is None:
        words.append(f"the peak of {gpu} is not known: no share of it")
    if step_seconds:
        tokens = work["step_tokens"] / work["ranks"] / step_seconds
        line = f"in {format_seconds(step_seconds)}: {bound}{tokens:,.0f} tokens/s a GPU"
        if peak is not None:
            line += f", {bound}{format_ratio(flops / step_seconds / peak / 1e12)} of the peak of {gpu} (MFU)"
        words.append(line)
    if peak is not None:
        dense = load_table(PUBLISHED)["dense_mfu"]
        shares = f"{format_ratio(dense['least'])} to {format_ratio(dense['most'])}"
        words.append(
            f"Megatron-LM publishes {shares} of an {dense['gpu']}'s peak for dense pre-training ({dense['url']}): a step of "
            f"this size would then take {format_seconds(flops / dense['most'] / peak / 1e12)}; experts, short sequences, "
            "full recomputation and offloading get less"
        )
    words += [f"published for this model: {run['words']} ({run['url']})" for run in work["published"]]
    if not work["published"]:
        words.append("nothing published is known here for this model")
    return words
