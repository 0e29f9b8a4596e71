"""What a micro-batch leaves on the GPU until its backward pass, layer by layer, and what is needed on top
while one is worked on.

Bytes, for 16-bit activations. The terms are those of Korthikanti et al., "Reducing Activation Recomputation
in Large Transformer Models" (arXiv:2205.05198), brought to what Megatron-core with TransformerEngine keeps
today: RMS norms, gated MLPs, grouped queries, no dropout, flash attention, experts that keep what they were
sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import vocabulary_of_rank

# Measured with a fresh router, 16 experts over two ranks: the busier rank got 17 % more than its share over
# eight layers, and twice its share in one of them. Trained routers with an auxiliary loss are trained to stay
# within some ten per cent.
UNEVEN = 1.2


@dataclass(frozen=True, slots=True)
class Layer:
    """Of one layer and micro-batch: `kept` until its backward, `entry` what full recomputation keeps of it,
    `working` on top while its backward runs."""

    kept: float
    entry: float
    working: float


@dataclass(frozen=True, slots=True)
class Activations:
    kept: float  # of all micro-batches in flight
    recomputed: float  # the layers that are computed again, whole, one group at a time
    working: float
    logits: float
    in_flight: float
    recomputation: str  # as the formula has it


def tokens_on_rank(plan: Plan) -> float:
    return plan.batch.tokens / plan.layout.cp


def layer_activations(plan: Plan, layer: int) -> Layer:
    shape, layout = plan.shape, plan.layout
    tokens, tp = tokens_on_rank(plan), layout.tp
    # norms and residuals are divided only by sequence parallelism
    outside = tp if layout.sequence_parallel else 1
    h, query, kv = shape.hidden, shape.query_size, shape.kv_size
    if shape.latent is not None:
        lat = shape.latent
        query = shape.heads * (lat.nope_dim + lat.rope_dim)
        kv = (query + shape.heads * lat.value_dim) // 2
    drop = plan.recompute.modules if plan.recompute.granularity == "selective" else ()
    entry = 2 * h * tokens / outside
    norm = 0.0 if "layernorm" in drop else entry
    norms = 2 * norm + 2 * 4 * tokens / outside
    out = query if shape.latent is None else shape.heads * shape.latent.value_dim
    # The fused q, k, v stay for the sake of v, which is a view; beside them what goes into the norms of q and
    # k (copies), what comes out of the rotation, and what attention gives to the projection.
    attention = 2 * (query + 2 * kv) + 2 * (query + kv) + 2 * out + (2 * (query + kv) if shape.qk_norm else 0)
    if shape.latent is not None and "mla_up_proj" not in drop:
        attention += 2 * (shape.latent.query_rank + shape.latent.kv_rank) * tp
    kept = 2 * entry + norms + (attention * tokens + 4 * shape.heads * tokens) / tp
    work_attention = 2 * (query + 2 * kv) * 2 * tokens / tp
    if plan.attention == "unfused":
        scores = _scores(plan) / tp
        # keys and values repeated for each query head
        spread = 4 * (query - kv) * tokens / tp if kv < query else 0.0
        kept += 0.0 if "core_attn" in drop else 2 * scores + spread
        work_attention += 6 * scores + (2 * scores + spread if "core_attn" in drop else 0.0)
    if shape.is_moe(layer):
        inner, work_inner = _moe(plan, tokens / outside, drop)
    else:
        inner, work_inner = _mlp(plan, shape.ffn, tokens, drop)
    kept += inner
    return Layer(kept, entry, max(work_attention, work_inner) + 2 * entry)


def _scores(plan: Plan) -> float:
    """Values of the attention scores of a micro-batch: heads x length x length for each sequence. With
    context parallelism a rank has its part of the queries and meets the keys part by part."""
    batch = plan.batch
    sequences = batch.tokens / batch.sequence
    return plan.shape.heads * sequences * batch.sequence**2 / plan.layout.cp**2


def _mlp(plan: Plan, width: int, tokens: float, drop: tuple[str, ...]) -> tuple[float, float]:
    kept, tp = 6 * width * tokens / plan.layout.tp, plan.layout.tp
    if "mlp" in drop:
        return 0.0, 12 * width * tokens / tp
    return kept, kept + _weight_gradient(plan, 2 * plan.shape.hidden * width / tp)


def _moe(plan: Plan, tokens: float, drop: tuple[str, ...]) -> tuple[float, float]:
    """`tokens` are those of this rank, as sequence parallelism has left them. With balanced experts it gets
    back as many as it sends, top_k for each; the rank with the busiest experts gets more."""
    shape, layout = plan.shape, plan.layout
    routed = tokens * shape.top_k * layout.etp * UNEVEN
    width = shape.moe_ffn / layout.etp
    h = shape.hidden
    router = tokens * shape.experts * (2 * 4 + 1)
    experts = routed * (2 * h + 4 * width + (0 if "moe_act" in drop else 2 * width) + 4)
    of_all = tokens * (layout.tp if layout.sequence_parallel else 1)
    shared = _mlp(plan, shape.shared_ffn, of_all, drop)[0] if shape.shared_ffn else 0.0
    here = math.ceil(shape.experts / layout.ep)
    working = routed * (3 * 2 * h + 6 * width) + _weight_gradient(plan, 2 * h * width * here)
    if "moe" in drop:
        return 0.0, working + experts + router + shared
    return router + experts + shared, working


def _weight_gradient(plan: Plan, size: float) -> float:
    """Where gradients of weights are not added into the main gradients by the matrix product itself, each is
    made first."""
    return 0.0 if plan.fused_gradients or plan.tuning.kind == "lora" else 2 * size


def in_flight(plan: Plan, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once: 1F1B, or Megatron's interleaved schedule in
    model chunks."""
    layout, batch = plan.layout, plan.batch
    count = max(1, batch.global_size // max(1, batch.micro * layout.dp))
    if layout.pp == 1:
        return 1.0
    if layout.vpp == 1:
        return float(min(count, layout.pp - stage))
    chunks = (layout.vpp - 1) * layout.pp + 2 * (layout.pp - stage - 1) + 1
    return min(count * layout.vpp, chunks) / layout.vpp


def logits_bytes(plan: Plan) -> float:
    """The output layer's values and their loss, at the peak. Beside the 16-bit logits Megatron's cross
    entropy has them in fp32, and keeps that as the softmax; compiled (cross_entropy_loss_fusion) it writes to
    a second fp32 copy, seen in torch 2.11. The Hugging Face loss has two more copies."""
    vocabulary = vocabulary_of_rank(plan.shape, plan.layout.tp)
    values = tokens_on_rank(plan) * vocabulary
    if plan.framework == "hf":
        by_pairs = plan.stage in ("dpo", "orpo", "cpo", "simpo", "kto", "grpo")
        return 0.0 if plan.attention == "liger" else values * (8.0 if by_pairs else 14.0)
    loss = values * (10 if plan.compiled_loss else 6)
    backward = values * 2 + _weight_gradient(plan, plan.shape.hidden * vocabulary)
    return max(loss, backward)


def stage_activations(plan: Plan, stage: int) -> Activations:
    layers = [layer_activations(plan, number) for number in plan.layout.layers_of(stage, plan.shape.layers)]
    flight = in_flight(plan, stage)
    how = plan.recompute
    kept = recomputed = 0.0
    if how.granularity == "full" and how.method == "block":
        first = min(how.layers * plan.layout.vpp, len(layers))
        kept = sum(layer.entry for layer in layers[:first]) + sum(layer.kept for layer in layers[first:])
        recomputed = max((layer.kept - layer.entry for layer in layers[:first]), default=0.0)
        text = f"full recomputation of {first} of {len(layers)} layers"
    elif how.granularity == "full":
        group = max(1, min(how.layers, len(layers)))
        groups = [layers[index : index + group] for index in range(0, len(layers), group)]
        kept = sum(part[0].entry for part in groups)
        recomputed = max(sum(layer.kept for layer in part) - part[0].entry for part in groups)
        text = f"full recomputation, {group} layer{'s' if group > 1 else ''} at a time"
    else:
        kept = sum(layer.kept for layer in layers)
        modules = f" ({', '.join(how.modules)})" if how.granularity == "selective" else ""
        text = f"{how.granularity} recomputation{modules}"
    last = stage == plan.layout.pp - 1
    if stage == 0:
        kept += layers[0].entry
    if last:
        kept += 2 * layers[-1].entry  # into and out of the last norm
    return Activations(
        kept=kept * flight,
        recomputed=recomputed,
        working=max(layer.working for layer in layers),
        logits=logits_bytes(plan) if last else 0.0,
        in_flight=flight,
        recomputation=text,
    )
