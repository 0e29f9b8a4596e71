"""Rules of thumb that people use instead: shown beside the estimate so that one can tell which of the two is to be
doubted."""

from __future__ import annotations

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.parameters import count, layer_count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import held
from diag.preflight.estimate.terms import make_term


def rules(plan: Plan) -> tuple[MemoryTerm, ...]:
    """Of one GPU, without activations unless the name says so."""
    whole, world = count(plan.shape), plan.layout.world
    every = make_term("rule_16_bytes", 16 * whole / world, whole=whole, world=world)
    if plan.framework == "megatron":
        most = max(held(plan, stage).all for stage in range(plan.layout.pp))
        copies = plan.layout.dense_copies
        each, formula = (
            (6 + 12 / copies, f"(6 + 12 / {copies})") if plan.optimizer.distributed else (18.0, "18")
        )
        return (
            every,
            make_term("rule_megatron", most * each, most=most, each=formula),
            _paper_activations(plan),
        )
    largest = max(layer_count(plan.shape, number).total for number in range(plan.shape.layers))
    return (
        every,
        make_term("rule_zero2", 4 * whole + 16 * whole / world),
        make_term("rule_zero3", 4 * largest + 18 * whole / world),
        make_term("rule_accelerate", 4 * 2 * whole),
    )


def _paper_activations(plan: Plan) -> MemoryTerm:
    shape, layout, batch = plan.shape, plan.layout, plan.batch
    values = batch.tokens / layout.cp * shape.hidden * shape.layers / layout.pp
    if plan.recompute.granularity == "full":
        return make_term("rule_activations", 2 * values, formula="2 s b h L")
    if plan.recompute.granularity == "selective":
        return make_term("rule_activations", 34 * values / layout.tp, formula="34 s b h L / t")
    scores = 5 * shape.heads * batch.sequence / shape.hidden
    return make_term(
        "rule_activations", values * (34 + scores) / layout.tp, formula="s b h L (34 + 5 a s / h) / t"
    )
