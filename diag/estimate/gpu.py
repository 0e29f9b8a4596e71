"""GPU memory of the rank that needs most, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diag.estimate.activations import Activations, stage_activations, tokens_on_rank
from diag.estimate.plan import Plan
from diag.estimate.states import GIB, many, padded_vocabulary, state_terms
from diag.observations.memory import MemoryTerm

__all__ = ["RankNeed", "gpu_needs"]

_MIB = 1 << 20

# All measured on H200 (driver 580, CUDA 13, torch 2.11, NCCL 2.28.9, TransformerEngine 2.16): docs/estimate.md.
_CONTEXT = 525 * _MIB  # of an idle process
_KERNELS = 2100 * _MIB  # kernels that libraries load on first use, and communicators of one rank
_WORKSPACE = 32 * _MIB  # of cuBLAS and cuBLASLt on Hopper: one for each stream and handle
_COMMUNICATOR = 390 * _MIB  # NCCL's buffers, two ranks over NVLink
_FRAGMENTATION = 0.2  # of what comes and goes in a step; measured 0.07 to 0.4


@dataclass(frozen=True, slots=True)
class RankNeed:
    """Of one pipeline stage; `stage` counts from 0."""

    stage: int
    terms: tuple[MemoryTerm, ...]
    activations: Activations

    @property
    def total(self) -> int:
        return sum(term.size_bytes for term in self.terms)


def gpu_needs(plan: Plan) -> tuple[RankNeed, ...]:
    """One for each pipeline stage; empty for a job on the CPU."""
    if plan.on_cpu:
        return ()
    return tuple(_need(plan, stage) for stage in range(plan.layout.pp))


def _need(plan: Plan, stage: int) -> RankNeed:
    terms = state_terms(plan, stage)
    work = stage_activations(plan, stage)
    moving = _activation_terms(plan, work)
    terms += moving
    allocated = sum(term.size_bytes for term in moving)
    loose = math.ceil(allocated * _FRAGMENTATION)
    terms.append(
        MemoryTerm(
            "allocator",
            loose,
            f"{_FRAGMENTATION:.0%} of the activations: blocks that are reserved and do not fit the next need",
            "measured, docs/estimate.md",
        )
    )
    terms += _fixed_terms(plan)
    return RankNeed(stage, tuple(terms), work)


def _activation_terms(plan: Plan, work: Activations) -> list[MemoryTerm]:
    tokens = tokens_on_rank(plan)
    flight = f"{work.in_flight:g} micro-batch{'es' if work.in_flight != 1 else ''} in flight, " if plan.layout.pp > 1 else ""
    terms = [
        MemoryTerm(
            "activations kept",
            math.ceil(work.kept),
            f"{flight}{tokens:,.0f} tokens, {work.words}",
            "arXiv:2205.05198, for RMS norm, gated MLP, GQA, flash attention",
        )
    ]
    layer = work.recomputed + work.working
    vocabulary = padded_vocabulary(plan.shape, plan.layout.tp) // plan.layout.tp
    if work.logits >= layer:
        terms.append(
            MemoryTerm(
                "logits and loss",
                math.ceil(work.logits),
                f"{tokens:,.0f} tokens x {vocabulary:,} of the vocabulary x {work.logits / (tokens * vocabulary):.3g} bytes "
                f"(one layer's backward needs {layer / GIB:.2f} GiB at another time)",
                "Megatron-LM core/fusions/fused_cross_entropy.py",
            )
        )
    else:
        also = f"; the logits need {work.logits / GIB:.2f} GiB at another time" if work.logits else ""
        terms.append(
            MemoryTerm(
                "one layer's backward",
                math.ceil(layer),
                f"what is computed again ({work.recomputed / GIB:.2f} GiB) and gradients of activations{also}",
                "largest layer of the stage",
            )
        )
    return terms


def communicators(plan: Plan) -> int:
    """Process groups of more than one rank that move GPU data, as Megatron makes them (core/parallel_state.py). A group of
    the same ranks as another has a communicator of its own all the same."""
    layout = plan.layout
    if layout.world == 1:
        return 0
    if plan.framework == "hf":
        return 1
    expert = plan.shape.experts > 0
    groups = [
        True,  # the world
        layout.tp > 1,
        layout.tp > 1,  # with context parallel
        layout.tp * layout.pp > 1,  # model parallel: gradient norms
        layout.tp * layout.dense_copies > 1,
        layout.pp > 1,
        layout.pp > 1,  # point to point
        layout.cp > 1,
        layout.dp > 1,
        layout.dense_copies > 1,  # data parallel with context parallel
        expert and layout.ep > 1,
        expert and layout.ep * layout.etp > 1,
        expert and layout.ep * layout.etp * layout.pp > 1,
        expert and layout.expert_copies > 1,
    ]
    return sum(groups)


def _fixed_terms(plan: Plan) -> list[MemoryTerm]:
    terms = [
        MemoryTerm("CUDA context", _CONTEXT, f"{_CONTEXT // _MIB} MiB", "measured, docs/estimate.md"),
        MemoryTerm(
            "loaded kernels",
            _KERNELS if plan.framework == "megatron" else _KERNELS // 4,
            "kernels of cuBLAS, TransformerEngine, NCCL and those compiled",
            "measured, docs/estimate.md",
        ),
    ]
    spaces = 8 if plan.shape.experts and plan.framework == "megatron" else 4
    terms.append(
        MemoryTerm("cuBLAS workspaces", spaces * _WORKSPACE, f"{spaces} x 32 MiB", "PyTorch and TransformerEngine on Hopper")
    )
    count = communicators(plan)
    if count:
        terms.append(
            MemoryTerm(
                "NCCL buffers",
                count * _COMMUNICATOR,
                f"{many(count, 'communicator')} x {_COMMUNICATOR // _MIB} MiB",
                "measured, docs/estimate.md; grows with ranks and networks",
            )
        )
    return terms
