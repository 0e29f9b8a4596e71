"""GPU memory of the rank that needs most, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.activations import Activations, stage_activations, tokens_on_rank
from diag.preflight.estimate.communicators import buffer_bytes, communicators, exporting, in_words
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import padded_vocabulary, state_terms
from diag.text.units import format_bytes, format_ratio

_MIB = 1 << 20

# All measured on H200 (driver 580, CUDA 13, torch 2.11, NCCL 2.28.9, TransformerEngine 2.16):
# docs/estimate.md.
_CONTEXT = 525 * _MIB  # of an idle process
_KERNELS = 410 * _MIB  # that libraries load on first use
_COLLECTIVES = 270 * _MIB  # the same of NCCL, once GPUs talk to each other
_WORKSPACE = 32 * _MIB  # of cuBLAS and cuBLASLt on Hopper: one for each stream and handle
_FRAGMENTATION = 0.2  # of what comes and goes in a step; measured 0.05 to 0.4


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
            f"{format_ratio(_FRAGMENTATION)} of the activations: blocks that are reserved and do not fit the next need",
            "measured, docs/estimate.md",
        )
    )
    terms += _fixed_terms(plan, stage)
    return RankNeed(stage, tuple(terms), work)


def _activation_terms(plan: Plan, work: Activations) -> list[MemoryTerm]:
    tokens = tokens_on_rank(plan)
    flight = (
        f"{work.in_flight:g} micro-batch{'es' if work.in_flight != 1 else ''} in flight, "
        if plan.layout.pp > 1
        else ""
    )
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
                f"(one layer's backward needs {format_bytes(layer)} at another time)",
                "Megatron-LM core/fusions/fused_cross_entropy.py",
            )
        )
    else:
        also = f"; the logits need {format_bytes(work.logits)} at another time" if work.logits else ""
        terms.append(
            MemoryTerm(
                "one layer's backward",
                math.ceil(layer),
                f"what is computed again ({format_bytes(work.recomputed)}) and gradients of activations{also}",
                "largest layer of the stage",
            )
        )
    return terms


def _fixed_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    groups = communicators(plan, stage)
    talks = any(group.ranks > 1 for group in groups)
    kernels = _KERNELS + (_COLLECTIVES if talks else 0)
    terms = [
        MemoryTerm("CUDA context", _CONTEXT, format_bytes(_CONTEXT), "measured, docs/estimate.md"),
        MemoryTerm(
            "loaded kernels",
            kernels,
            "kernels of cuBLAS, TransformerEngine and those compiled" + (", of NCCL" if talks else ""),
            "measured, docs/estimate.md",
        ),
    ]
    spaces = 8 if plan.shape.experts and plan.framework == "megatron" else 4
    terms.append(
        MemoryTerm(
            "cuBLAS workspaces",
            spaces * _WORKSPACE,
            f"{spaces} x 32 MiB",
            "PyTorch and TransformerEngine on Hopper",
        )
    )
    if groups:
        terms.append(
            MemoryTerm(
                "NCCL buffers",
                sum(buffer_bytes(group) for group in groups),
                in_words(groups),
                "Megatron-LM core/parallel_state.py; measured, docs/estimate.md; grows with ranks and networks",
            )
        )
    exports = exporting(plan)
    if exports is not None:
        terms.append(
            MemoryTerm(
                "NCCL buffers of the export",
                buffer_bytes(exports),
                "one communicator more from the first save of safetensors on",
                "mcore-bridge bridge/gpt_bridge.py; measured, docs/estimate.md",
            )
        )
    return terms
