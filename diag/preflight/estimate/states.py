"""What lies on one rank all the time: weights, gradients, the optimizer, a reference model. One pipeline
stage at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.model_shape import Shape
from diag.preflight.estimate.parameters import layer_count, lora_count, total_count
from diag.preflight.estimate.plan import Layout, Plan, Tuning
from diag.text.tables import fill, load_table
from diag.text.units import format_ratio


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one rank of one stage, and the sizes of the single tensors; those of experts are not
    among `tensors`."""

    dense: int
    experts: int
    trained_dense: int
    trained_experts: int
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


def vocabulary_of_rank(shape: Shape, tp: int) -> int:
    """mcore-bridge pads the vocabulary to a multiple of TP."""
    return -(-shape.vocabulary // tp)


def held(plan: Plan, stage: int) -> Held:
    return _held(plan.shape, plan.layout, plan.tuning, stage)


@functools.lru_cache(maxsize=256)
def _held(shape: Shape, layout: Layout, tuning: Tuning, stage: int) -> Held:
    tp, ep, etp = layout.tp, layout.ep, layout.etp
    is_last = stage == layout.pp - 1
    layers = layout.layers_of(stage, shape.layers)
    has = total_count(layer_count(shape, layer, tp, ep, etp) for layer in layers)
    matrix = vocabulary_of_rank(shape, tp) * shape.hidden
    copies = 1 if shape.tied and layout.pp == 1 else (stage == 0) + is_last
    ends = (matrix,) * copies + ((shape.hidden,) if is_last else ())
    dense, both = has.dense + sum(ends), (has.tensors + ends, has.expert_tensors)
    if tuning.kind == "lora":
        added = total_count(
            lora_count(shape, layer, tuning.lora_rank, tp=tp, ep=ep, etp=etp) for layer in layers
        )
        trained, of_trained = (added.dense, added.experts), (added.tensors, added.expert_tensors)
        return Held(dense + added.dense, has.experts + added.experts, *trained, *both, *of_trained)
    share = 1.0 - tuning.frozen_share
    trained = int(dense * share), int(has.experts * share)
    return Held(dense, has.experts, *trained, *both, *both)


def state_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    return _sharded_terms(plan, stage) if plan.framework == "hf" else _megatron_terms(plan, stage)


def _megatron_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    has, prec, layout, opt = held(plan, stage), plan.precision, plan.layout, plan.optimizer
    weights = has.all * prec.weight
    terms = [make_term("weights", weights, parameters=has.all, each=prec.weight)]
    if plan.reference:
        terms.append(make_term("reference", weights, parameters=has.all, each=prec.weight))
    if plan.reference and plan.reference_gradients:
        terms.append(make_term("reference_gradients", has.all * 4, parameters=has.all))
    terms.append(make_term("gradients", has.trained * prec.gradient, trained=has.trained, each=prec.gradient))
    dense_by = layout.dense_copies if opt.distributed else 1
    expert_by = layout.expert_copies if opt.distributed else 1
    shard = has.trained_dense / dense_by + has.trained_experts / expert_by
    stays = 1.0 - opt.offload
    main = prec.main if prec.weight < 4 or opt.precision_aware else 0.0
    # Offloading clones the main parameters; only where a precision-aware optimizer holds them are there none
    # left on the GPU.
    main_share = 1.0 if opt.offload and not opt.precision_aware else stays
    moments = prec.moment1 + prec.moment2 if opt.kind == "adam" else 4.0
    divided = f"/ {dense_by} (dense) and {expert_by} (experts)" if has.experts else f"/ {dense_by}"
    for key, each, share in (("main_parameters", main, main_share), ("moments", moments, stays)):
        if each * share:
            part = "" if share == 1.0 else f", {format_ratio(share)} of it on the GPU"
            size = shard * each * share
            terms.append(make_term(key, size, trained=has.trained, each=each, divided=divided, share=part))
    return terms


def _sharded_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    """DeepSpeed's ZeRO, FSDP, or plain data parallelism of the Hugging Face trainer."""
    has, prec, how, world = held(plan, stage), plan.precision, plan.sharding, plan.layout.world
    frozen, trained = has.all - has.trained, has.trained
    zero = how.stage if how.kind != "none" else 0
    weights_by, gradients_by, optimizer_by = (world if zero >= least else 1 for least in (3, 2, 1))
    base = plan.tuning.quantized_bytes or 2.0
    weights = frozen * (base if plan.tuning.kind == "lora" else prec.weight) + trained * prec.weight
    terms = []
    if not how.parameters_on_cpu:
        whole = {"parameters": has.all, "by": weights_by}
        terms.append(make_term("weights_sharded", weights / weights_by, **whole))
        if plan.reference:
            terms.append(make_term("reference_sharded", has.all * 2 / weights_by, **whole))
    if zero == 3:
        layer = max(layer_count(plan.shape, number).total for number in range(plan.shape.layers))
        largest = max(layer, plan.shape.vocabulary * plan.shape.hidden)
        live = min(2 * largest, has.all, how.live if how.kind == "zero" else has.all)
        terms.append(make_term("gathered_layers", live * prec.weight, live=live))
    states = prec.main + prec.moment1 + prec.moment2
    for key, each, by, on_cpu in (
        ("gradients_sharded", prec.gradient, gradients_by, zero >= 2 and how.optimizer_on_cpu),
        ("optimizer_sharded", states, optimizer_by, how.optimizer_on_cpu),
    ):
        if each and not on_cpu:
            terms.append(make_term(key, trained * each / by, trained=trained, each=each, by=by))
    if how.kind == "zero":
        bucket = min(how.bucket, trained)
        copies = 2 if zero == 2 else 1  # one is filled while the other is reduced
        terms.append(make_term("zero_buckets", bucket * prec.gradient * copies, bucket=bucket, copies=copies))
    elif world > 1 and how.kind == "none":
        terms.append(make_term("ddp_buckets", trained * prec.gradient))
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


TERMS = Path(__file__).with_name("terms.yaml")


def make_term(key: str, size: float, **values: object) -> MemoryTerm:
    """`values` are those of the row's formula.

    >>> make_term("weights", 2e9, parameters=1e9, each=2.0).formula
    '1B parameters x 2 bytes'
    """
    row = load_table(TERMS)[key]
    return MemoryTerm(row["name"], max(0, math.ceil(size)), fill(row["formula"], **values), row["source"])
