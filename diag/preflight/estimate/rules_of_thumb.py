"""What people reckon with instead: shown beside the estimate so that one can tell which of the two is to be
doubted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diag.preflight.estimate.parameters import count, layer_count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import held
from diag.text.units import format_magnitude


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    size_bytes: int
    formula: str
    source: str


def rules(plan: Plan) -> tuple[Rule, ...]:
    """Of one GPU, without activations unless the name says so."""
    whole, world = count(plan.shape), plan.layout.world
    found = [
        Rule(
            "16 bytes a parameter over all GPUs",
            math.ceil(16 * whole / world),
            f"16 x {format_magnitude(whole)} / {world}",
            "weights 2, gradients 2, fp32 weights and moments 12: arXiv:1910.02054",
        )
    ]
    if plan.framework == "megatron":
        most = max(held(plan, stage).all for stage in range(plan.layout.pp))
        each = 6 + 12 / plan.layout.dense_copies if plan.optimizer.distributed else 18.0
        found.append(
            Rule(
                "Megatron-LM's report",
                math.ceil(most * each),
                f"{format_magnitude(most)} on the rank x (6 + 12 / {plan.layout.dense_copies})"
                if plan.optimizer.distributed
                else f"{format_magnitude(most)} on the rank x 18",
                "Megatron-LM training/theoretical_memory_usage.py",
            )
        )
        found.append(_paper_activations(plan))
    else:
        largest = max(layer_count(plan.shape, number).total for number in range(plan.shape.layers))
        found.append(
            Rule(
                "DeepSpeed's ZeRO 2 estimator",
                math.ceil(4 * whole + 16 * whole / world),
                "4 x P + 16 x P / N",
                "deepspeed runtime/zero/stage_1_and_2.py: estimate_zero2_model_states_mem_needs",
            )
        )
        found.append(
            Rule(
                "DeepSpeed's ZeRO 3 estimator",
                math.ceil(4 * largest + 18 * whole / world),
                "4 x largest layer + 18 x P / N",
                "deepspeed runtime/zero/stage3.py: estimate_zero3_model_states_mem_needs",
            )
        )
        found.append(
            Rule(
                "accelerate estimate-memory",
                4 * 2 * whole,
                "4 x the model's size in 16 bits, on each GPU",
                "accelerate commands/estimate.py",
            )
        )
    return tuple(found)


def _paper_activations(plan: Plan) -> Rule:
    shape, layout, batch = plan.shape, plan.layout, plan.batch
    tokens, layers = batch.tokens / layout.cp, shape.layers / layout.pp
    if plan.recompute.granularity == "full":
        size, formula = 2 * tokens * shape.hidden * layers, "2 s b h L"
    elif plan.recompute.granularity == "selective":
        size, formula = 34 * tokens * shape.hidden * layers / layout.tp, "34 s b h L / t"
    else:
        scores = 5 * shape.heads * batch.sequence / shape.hidden
        size, formula = (
            tokens * shape.hidden * layers * (34 + scores) / layout.tp,
            "s b h L (34 + 5 a s / h) / t",
        )
    return Rule(
        "activations, as in the paper",
        math.ceil(size),
        formula,
        "arXiv:2205.05198, table 2: GELU, LayerNorm, dropout, no GQA",
    )
