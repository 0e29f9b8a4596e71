"""What lies on one rank all the time: weights, gradients, the optimizer, a reference model. One pipeline
stage at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.model_shape import Shape
from diag.preflight.estimate.parameters import layer_count, lora_count
from diag.preflight.estimate.plan import Layout, Plan, Tuning
from diag.text.units import format_magnitude, format_ratio

GIB = 1 << 30

_MEGATRON_SIZES = "Megatron-LM training/theoretical_memory_usage.py"
_BUFFERS = "Megatron-LM core/distributed/param_and_grad_buffer.py"
_DISTRIBUTED = "Megatron-LM core/optimizer/distrib_optimizer.py"
_ZERO = "ZeRO, arXiv:1910.02054, section 3"


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one rank of one stage, and the sizes of the single tensors; those of experts are not
    among `tensors`."""

    dense: int
    experts: int
    trained_dense: int
    trained_experts: int
    embedding: int
    tensors: tuple[int, ...] = ()
    expert_tensors: tuple[int, ...] = ()
    trained_tensors: tuple[int, ...] = ()
    trained_expert_tensors: tuple[int, ...] = ()

    @property
    def all(self) -> int:
        return self.dense + self.experts

    @property
    def trained(self) -> int:
        return self.trained_dense + self.trained_experts


def stage_layer_numbers(plan: Plan, stage: int) -> range:
    return _layer_numbers(plan.shape, plan.layout, stage)


def _layer_numbers(shape: Shape, layout: Layout, stage: int) -> range:
    stages = layout.stage_layers(shape.layers)
    start = sum(stages[:stage])
    return range(start, start + stages[stage])


def padded_vocabulary(shape: Shape, tp: int) -> int:
    """mcore-bridge pads the vocabulary to a multiple of TP."""
    return -(-shape.vocabulary // tp) * tp


def held(plan: Plan, stage: int) -> Held:
    return _held(plan.shape, plan.layout, plan.tuning, stage)


@functools.lru_cache(maxsize=256)
def _held(shape: Shape, layout: Layout, tuning: Tuning, stage: int) -> Held:
    tp, ep, etp, pp, kind = layout.tp, layout.ep, layout.etp, layout.pp, tuning.kind
    dense = experts = added_dense = added_experts = 0
    tensors: list[int] = []
    expert_tensors: list[int] = []
    added: list[int] = []
    added_expert_tensors: list[int] = []
    for layer in _layer_numbers(shape, layout, stage):
        layer_has = layer_count(shape, layer, tp, ep, etp)
        dense += layer_has.dense
        experts += layer_has.experts
        tensors += layer_has.tensors
        expert_tensors += layer_has.expert_tensors
        if kind == "lora":
            extra = lora_count(shape, layer, tuning.lora_rank, tp=tp, ep=ep, etp=etp)
            added_dense += extra.dense
            added_experts += extra.experts
            added += extra.tensors
            added_expert_tensors += extra.expert_tensors
    matrix = padded_vocabulary(shape, tp) // tp * shape.hidden
    ends = (stage == 0) + (stage == pp - 1)
    embedding = matrix * (1 if shape.tied and pp == 1 else ends)
    tensors += [matrix] * (embedding // matrix)
    if stage == pp - 1:
        dense += shape.hidden
        tensors.append(shape.hidden)
    dense += embedding
    sizes, expert_sizes = tuple(tensors), tuple(expert_tensors)
    if kind == "lora":
        return Held(
            dense + added_dense,
            experts + added_experts,
            added_dense,
            added_experts,
            embedding,
            sizes,
            expert_sizes,
            tuple(added),
            tuple(added_expert_tensors),
        )
    share = 1.0 - tuning.frozen_share
    return Held(
        dense,
        experts,
        int(dense * share),
        int(experts * share),
        embedding,
        sizes,
        expert_sizes,
        sizes,
        expert_sizes,
    )


def state_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    return _sharded_terms(plan, stage) if plan.framework == "hf" else _megatron_terms(plan, stage)


def _term(name: str, size: float, formula: str, source: str) -> MemoryTerm:
    return MemoryTerm(name, max(0, math.ceil(size)), formula, source)


def _bytes(value: float) -> str:
    return f"{value:g}"


def _megatron_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    has, prec, layout, opt = held(plan, stage), plan.precision, plan.layout, plan.optimizer
    terms = [
        _term(
            "weights",
            has.all * prec.weight,
            f"{format_magnitude(has.all)} parameters x {_bytes(prec.weight)} bytes",
            _MEGATRON_SIZES,
        )
    ]
    if plan.reference:
        terms.append(
            _term(
                "reference model",
                has.all * prec.weight,
                f"{format_magnitude(has.all)} parameters x {_bytes(prec.weight)} bytes, frozen",
                "ms-swift megatron/trainers/rlhf_mixin.py: prepare_model",
            )
        )
    if plan.teacher_parameters:
        terms.append(
            _term(
                "teacher model",
                plan.teacher_parameters * 2 / (layout.tp * layout.pp),
                "2 bytes a parameter",
                "",
            )
        )
    terms.append(
        _term(
            "gradients",
            has.trained * prec.gradient,
            f"{format_magnitude(has.trained)} trained x {_bytes(prec.gradient)} bytes, not divided",
            _BUFFERS,
        )
    )
    dense_by = layout.dense_copies if opt.distributed else 1
    expert_by = layout.expert_copies if opt.distributed else 1
    shard = has.trained_dense / dense_by + has.trained_experts / expert_by
    stays = 1.0 - opt.offload
    main = prec.main if prec.weight < 4 or opt.precision_aware else 0.0
    # Offloading clones the main parameters; only where a precision-aware optimizer holds them are there none
    # left on the GPU.
    main_share = 1.0 if opt.offload and not opt.precision_aware else stays
    moments = {"adam": prec.moment1 + prec.moment2, "sgd": 4.0}.get(opt.kind, 4.0)
    divided = f"/ {dense_by} (dense) and {expert_by} (experts)" if has.experts else f"/ {dense_by}"
    if main * main_share:
        terms.append(
            _term(
                "main parameters",
                shard * main * main_share,
                f"{format_magnitude(has.trained)} trained x {_bytes(main)} bytes {divided}"
                + _format_share(main_share),
                _DISTRIBUTED,
            )
        )
    if moments * stays:
        terms.append(
            _term(
                "optimizer moments",
                shard * moments * stays,
                f"{format_magnitude(has.trained)} trained x {_bytes(moments)} bytes {divided}"
                + _format_share(stays),
                _DISTRIBUTED,
            )
        )
    return terms


def _format_share(share: float) -> str:
    return "" if share == 1.0 else f", {format_ratio(share)} of it on the GPU"


def _sharded_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    """DeepSpeed's ZeRO, FSDP, or plain data parallelism of the Hugging Face trainer."""
    has, prec, how, world = held(plan, stage), plan.precision, plan.sharding, plan.layout.world
    frozen = has.all - has.trained
    zero = how.stage if how.kind != "none" else 0
    parts = {
        "weights": world if zero == 3 else 1,
        "gradients": world if zero >= 2 else 1,
        "optimizer": world if zero >= 1 else 1,
    }
    base = plan.tuning.quantized_bytes or 2.0
    weight = frozen * (base if plan.tuning.kind == "lora" else prec.weight) + has.trained * prec.weight
    terms = []
    if not how.parameters_on_cpu:
        terms.append(
            _term(
                "weights",
                weight / parts["weights"],
                f"{format_magnitude(has.all)} parameters / {parts['weights']}",
                _ZERO,
            )
        )
        if plan.reference:
            terms.append(
                _term(
                    "reference model",
                    has.all * 2 / parts["weights"],
                    f"{format_magnitude(has.all)} parameters x 2 bytes / {parts['weights']}",
                    "ms-swift arguments/rlhf_args.py; divided by ZeRO 3 and FSDP only",
                )
            )
    if zero == 3:
        layer = max(layer_count(plan.shape, number).total for number in range(plan.shape.layers))
        largest = max(layer, plan.shape.vocabulary * plan.shape.hidden)
        live = min(2 * largest, how.live, has.all) if how.kind == "zero" else min(2 * largest, has.all)
        terms.append(
            _term(
                "gathered layers",
                live * prec.weight,
                f"two layers (or the embedding) whole: {format_magnitude(live)} parameters",
                "DeepSpeed stage3_max_live_parameters; FSDP keeps the layer in work and the next",
            )
        )
    if not (zero >= 2 and how.optimizer_on_cpu):
        terms.append(
            _term(
                "gradients",
                has.trained * prec.gradient / parts["gradients"],
                f"{format_magnitude(has.trained)} trained x {_bytes(prec.gradient)} bytes / {parts['gradients']}",
                _ZERO,
            )
        )
    states = prec.main + prec.moment1 + prec.moment2
    if states and not how.optimizer_on_cpu:
        terms.append(
            _term(
                "optimizer",
                has.trained * states / parts["optimizer"],
                f"{format_magnitude(has.trained)} trained x {_bytes(states)} bytes / {parts['optimizer']}",
                _ZERO,
            )
        )
    if how.kind == "zero":
        bucket = min(how.bucket, has.trained)
        copies = 2 if zero == 2 else 1  # one is filled while the other is reduced
        terms.append(
            _term(
                "communication buckets",
                bucket * prec.gradient * copies,
                f"{format_magnitude(bucket)} values x {copies}",
                "DeepSpeed reduce_bucket_size, allgather_bucket_size",
            )
        )
    elif world > 1 and how.kind == "none":
        terms.append(
            _term(
                "communication buckets",
                has.trained * prec.gradient,
                "as large as the gradients",
                "torch DistributedDataParallel, gradient_as_bucket_view=False",
            )
        )
    return terms


def pinned_bytes(sizes: Iterable[float], of: float) -> int:
    """Host memory that pinned copies of tensors take: each is rounded up to a power of two.

    >>> pinned_bytes([3 << 20], 4.0) >> 20
    16
    """
    total = 0
    for size in sizes:
        need = max(1, math.ceil(size * of))
        total += 1 << (need - 1).bit_length()
    return total
