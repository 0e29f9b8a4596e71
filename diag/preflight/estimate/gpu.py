"""GPU memory of the rank that needs most, term by term, with what NCCL's communicators take outside of PyTorch's
allocator; and the rules of thumb that people use instead, so that one can tell which of the two is to be doubted."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.activations import Activations, stage_activations, tokens_on_rank
from diag.preflight.estimate.load_plan import load_terms
from diag.preflight.estimate.parameters import count, layer_count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import held, make_term, state_terms, vocabulary_of_rank
from diag.text.units import format_bytes, format_count

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
    if plan.framework == "load":
        fixed = _fixed_terms(plan, 0)
        return (RankNeed(0, (*load_terms(plan), *fixed), Activations(0, 0, 0, 0, 1, "none")),)
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
    flight = flight if plan.layout.pp > 1 else ""
    terms = [make_term("activations", work.kept, flight=flight, tokens=tokens, how=work.recomputation)]
    layer = work.recomputed + work.working
    vocabulary = vocabulary_of_rank(plan.shape, plan.layout.tp)
    if work.logits >= layer:
        values = {"tokens": tokens, "vocabulary": vocabulary, "each": work.logits / (tokens * vocabulary)}
        terms.append(make_term("logits", work.logits, layer=layer, **values))
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


# NCCL 2.28.9 on two H200 over NVLink, read off as a job ended and gave its communicators back one by one. A ring takes 9.19 MiB
# a channel (its three protocols), of 24 channels; the rest is there before anything is connected, and more
# with one rank, which gets all 64 channels.
_ALONE = 388 * _MIB
_UNCONNECTED = 264 * _MIB
_RING = 220 * _MIB
_PEER = 96 * _MIB  # sends and receives between two GPUs: 4 MiB a channel


@dataclass(frozen=True, slots=True)
class Communicator:
    """One of NCCL's, of which PyTorch makes one when a process group is first used, for a group of a single rank too,
    and one for each group even where two have the same ranks. `ring`: it does collectives. `peers`: ranks of the
    same node that it sends to and receives from directly."""

    what: str
    ranks: int
    ring: bool = True
    peers: int = 0


def buffer_bytes(group: Communicator) -> int:
    """
    >>> buffer_bytes(Communicator("data parallel", 2)) >> 20, buffer_bytes(Communicator("data parallel", 1)) >> 20
    (484, 388)
    """
    if group.ranks == 1:
        return _ALONE
    return _UNCONNECTED + (_RING if group.ring else 0) + group.peers * _PEER


def communicators(plan: Plan, stage: int) -> tuple[Communicator, ...]:
    """Those that are there after the first step, on a rank of that pipeline stage."""
    layout = plan.layout
    if plan.framework == "load":
        return ()
    if plan.framework == "hf":
        return (Communicator("data parallel", layout.world),) if layout.world > 1 else ()
    experts = plan.shape.experts > 0
    found = [
        Communicator("all ranks", layout.world),
        Communicator("model parallel", layout.tp * layout.pp),  # did a gradient overflow anywhere
        Communicator("data parallel", layout.dp),  # metrics
        Communicator("data and context parallel", layout.dense_copies),  # gradients
    ]
    if plan.optimizer.distributed:
        found.append(Communicator("optimizer", layout.world))  # the norm of the gradients
    if layout.tp > 1 or stage == layout.pp - 1:  # the loss is reduced over it whatever its size
        found.append(Communicator("tensor parallel", layout.tp))
    if layout.cp > 1:
        found.append(Communicator("context parallel", layout.cp, peers=min(2, layout.cp - 1)))
    if layout.pp > 1 or experts:  # the experts' balance is summed over it
        found.append(Communicator("pipeline parallel", layout.pp, peers=0 if layout.pp == 1 else 1))
    if experts and plan.balance_loss:
        found.append(Communicator("tensor and context parallel", layout.tp * layout.cp))
    if layout.pp > 1:
        found += [Communicator("between stages", 2, ring=False, peers=1)] * 2
    if experts and layout.ep > 1:
        # all to all
        found.append(Communicator("expert parallel", layout.ep, peers=min(layout.ep, layout.processes) - 1))
        found.append(Communicator("expert data parallel", layout.expert_copies))
    if experts and layout.ep * layout.etp > 1:
        # tokens of each expert
        found.append(Communicator("tensor and expert parallel", layout.ep * layout.etp))
    return tuple(found)


def exporting(plan: Plan) -> Communicator | None:
    """What gathers whole tensors for safetensors, once a first save has been: it is not given back."""
    parts = plan.layout.tp * plan.layout.pp * plan.layout.ep
    exports = plan.framework == "megatron" and plan.save.safetensors and parts > 1
    return Communicator("export", parts) if exports else None


def describe(groups: tuple[Communicator, ...]) -> str:
    """
    >>> describe((Communicator("data parallel", 2), Communicator("tensor parallel", 1)))
    '2 communicators: 484 MiB for 1 of several ranks, 388 MiB for 1 of one rank'
    """
    several, alone = ([group for group in groups if (group.ranks > 1) is more] for more in (True, False))
    parts = []
    for part, name in ((several, "several ranks"), (alone, "one rank")):
        if part:
            parts.append(f"{format_bytes(sum(map(buffer_bytes, part)))} for {len(part)} of {name}")
    return f"{format_count(len(groups), 'communicator')}: " + ", ".join(parts)


def rules(plan: Plan) -> tuple[MemoryTerm, ...]:
    """Of one GPU, without activations unless the name says so."""
    whole, world = count(plan.shape), plan.layout.world
    if plan.framework == "load":
        return ()
    every = make_term("rule_16_bytes", 16 * whole / world, whole=whole, world=world)
    if plan.framework == "megatron":
        most = max(held(plan, stage).all for stage in range(plan.layout.pp))
        copies = plan.layout.dense_copies
        each, formula = 18.0, "18"
        if plan.optimizer.distributed:
            each, formula = 6 + 12 / copies, f"(6 + 12 / {copies})"
        megatron = make_term("rule_megatron", most * each, most=most, each=formula)
        return every, megatron, _paper_activations(plan)
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
    scores = 5 * shape.heads * batch.sequence / shape.hidden
    size, formula = values * (34 + scores) / layout.tp, "s b h L (34 + 5 a s / h) / t"
    if plan.recompute.granularity == "full":
        size, formula = 2 * values, "2 s b h L"
    elif plan.recompute.granularity == "selective":
        size, formula = 34 * values / layout.tp, "34 s b h L / t"
    return make_term("rule_activations", size, formula=formula)
