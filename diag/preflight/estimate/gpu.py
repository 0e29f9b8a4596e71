"""GPU memory of the rank that needs most, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.activations import Activations, stage_activations, tokens_on_rank
from diag.preflight.estimate.communicators import buffer_bytes, communicators, describe, exporting
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import padded_vocabulary, state_terms
from diag.preflight.estimate.terms import make_term
from diag.text.units import format_bytes

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
    work = stage_activations(plan, stage)
    moving = _activation_terms(plan, work)
    loose = sum(term.size_bytes for term in moving) * _FRAGMENTATION
    allocator = make_term("allocator", loose, share=_FRAGMENTATION)
    terms = (*state_terms(plan, stage), *moving, allocator, *_fixed_terms(plan, stage))
    return RankNeed(stage, terms, work)


def _activation_terms(plan: Plan, work: Activations) -> list[MemoryTerm]:
    tokens = tokens_on_rank(plan)
    flight = f"{work.in_flight:g} micro-batch{'es' if work.in_flight != 1 else ''} in flight, "
    terms = [
        make_term(
            "activations",
            work.kept,
            flight=flight if plan.layout.pp > 1 else "",
            tokens=tokens,
            how=work.recomputation,
        )
    ]
    layer = work.recomputed + work.working
    vocabulary = padded_vocabulary(plan.shape, plan.layout.tp) // plan.layout.tp
    if work.logits >= layer:
        each = work.logits / (tokens * vocabulary)
        terms.append(
            make_term("logits", work.logits, tokens=tokens, vocabulary=vocabulary, each=each, layer=layer)
        )
    else:
        also = f"; the logits need {format_bytes(work.logits)} at another time" if work.logits else ""
        terms.append(make_term("backward", layer, recomputed=work.recomputed, also=also))
    return terms


def _fixed_terms(plan: Plan, stage: int) -> list[MemoryTerm]:
    groups = communicators(plan, stage)
    talks = any(group.ranks > 1 for group in groups)
    kernels = _KERNELS + (_COLLECTIVES if talks else 0)
    spaces = 8 if plan.shape.experts and plan.framework == "megatron" else 4
    terms = [
        make_term("context", _CONTEXT, each=_CONTEXT),
        make_term("kernels", kernels, nccl=", of NCCL" if talks else ""),
        make_term("workspaces", spaces * _WORKSPACE, spaces=spaces, each=_WORKSPACE),
    ]
    if groups:
        terms.append(make_term("nccl", sum(map(buffer_bytes, groups)), groups=describe(groups)))
    exports = exporting(plan)
    if exports is not None:
        terms.append(make_term("nccl_export", buffer_bytes(exports)))
    return terms
