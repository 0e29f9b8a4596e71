"""What a step has to compute, and what others publish of the same model: what a job's speed is held against."""

from __future__ import annotations

from typing import Any

from diag.preflight.estimate.parameters import count, layer_count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.trust import method_of, published_runs, run_words

_SHOWN = 3
# Passes through the model in forward passes: a backward pass is two, of LoRA one (its frozen weights need no gradients);
# a reference model is one more, and KTO's unpaired answers another.
_TRAINED, _TRAINED_LORA = 3.0, 2.0
_REFERENCE = ("dpo", "kto", "grpo")


def active_parameters(plan: Plan) -> int:
    """Those that a token is multiplied with: of the experts only the chosen ones, and no table of embeddings.

    >>> from diag.preflight.estimate import estimate
    >>> plan = estimate(["swift", "sft", "--model", "Qwen/Qwen3-30B-A3B", "--max_length", "64"], {}).plan
    >>> round(active_parameters(plan) / 1e9, 2)
    3.04
    """
    shape = plan.shape
    idle = sum(
        layer_count(shape, layer).experts * (shape.experts - shape.top_k) // shape.experts
        for layer in range(shape.layers)
        if shape.is_moe(layer)
    )
    embedding = shape.vocabulary * shape.hidden
    return count(shape) - idle - (0 if shape.tied else embedding)


def token_flops(plan: Plan) -> float:
    """Of one token of the longest sequences, all passes that training makes; recomputing is not among them. Causal
    attention: a token meets half of its sequence on the average."""
    shape = plan.shape
    width = shape.query_size
    if shape.latent is not None:
        lat = shape.latent
        width = shape.heads * (lat.nope_dim + lat.rope_dim + lat.value_dim) // 2
    attention = 4 * width * plan.batch.sequence / 2 * shape.layers
    passes = _TRAINED_LORA if plan.tuning.kind == "lora" else _TRAINED
    passes += 1 if plan.stage in _REFERENCE else 0
    return (2 * active_parameters(plan) + attention) * passes


def step_tokens(plan: Plan) -> int:
    """Of all ranks: what packs hold, or what samples have at most. A pack of pairs holds both of each."""
    batch = plan.batch
    return batch.global_size * batch.sequence * (1 if batch.packed else batch.pairs)


def speed_json(plan: Plan) -> dict[str, Any] | None:
    """What the record of an estimate says of a job's speed; None for what trains nothing, and for rollouts."""
    if plan.framework == "load" or plan.stage in ("grpo", "gkd"):
        return None
    method = method_of(plan)
    runs = [
        run for run in published_runs(plan) if "seconds" in run or "tokens_per_gpu" in run
    ]  # the most alike first
    return {
        "step_tokens": step_tokens(plan),
        "packed": plan.batch.packed,
        "step_flops": step_tokens(plan) * token_flops(plan),
        "ranks": plan.layout.world,
        "recomputes": plan.recompute.granularity == "full",
        "published": [
            {
                "words": run_words(run),
                "url": run["url"],
                "gpu": run.get("gpu", ""),
                "gpu_tokens_per_second": _gpu_tokens(run),
                "alike": run["stage"] == plan.stage
                and run["tuning"] == plan.tuning.kind
                and run["method"] == method,
            }
            for run in runs[:_SHOWN]
        ],
    }


def _gpu_tokens(run: dict[str, Any]) -> float | None:
    if "tokens_per_gpu" in run:
        return float(run["tokens_per_gpu"])
    if "step_tokens" not in run:
        return None
    return round(float(run["step_tokens"] / run["seconds"] / run["gpus"]), 1)
