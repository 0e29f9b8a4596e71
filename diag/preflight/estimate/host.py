"""Host memory of one node: what the processes need all the time, and what a save needs on top."""

from __future__ import annotations

import math
from collections.abc import Iterable

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.activations import stage_activations, tokens_on_rank
from diag.preflight.estimate.load_plan import load_host_terms
from diag.preflight.estimate.parameters import count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import (
    Held,
    held,
    make_term,
    pinned_bytes,
    state_terms,
    vocabulary_of_rank,
)
from diag.text.units import format_bytes

_MIB = 1 << 20

# Anonymous memory of processes as the cgroup counts it (shared pages once): ms-swift 4.6.0 on H200 (torch
# 2.11, 32 CPUs), and on a CPU (torch 2.13). docs/estimate.md has the measurements.
# a process that only imports torch and waits: the CLI, torchrun
_PROGRAM_GPU, _PROGRAM_CPU = (290 * _MIB, 155 * _MIB)
_RANK_GPU, _RANK_CPU = 2000 * _MIB, 400 * _MIB  # after the first step
_WORKER = 70 * _MIB  # what becomes a forked DataLoader worker's own
# torch/_inductor/config.py: compile_threads
_COMPILER, _COMPILE_WORKER, _MOST_COMPILE_WORKERS = (250 * _MIB, 18 * _MIB, 32)
_MAPPED = 32 * _MIB  # malloc gives larger pieces back at once: M_MMAP_THRESHOLD_MAX
# Holds the queue of written files. It is spawned, so that it imports all again, and kept after the save; 410
# to 490 on H200.
_WRITER_GPU, _WRITER_CPU = 450 * _MIB, 200 * _MIB
# a step: oneDNN keeps a kernel for each shape it meets, and experts meet a new one each time
_CPU_KERNELS = 43 * _MIB
_CPU_KERNEL_STEPS = 16


def host_terms(plan: Plan, steps: int | None = None, cpus: int = _MOST_COMPILE_WORKERS) -> list[MemoryTerm]:
    """Of the node whose ranks need most."""
    ranks, data = plan.layout.processes, plan.data
    if plan.framework == "load":
        ranks = 1  # device_map spreads one process over the GPUs
    program, base = (_PROGRAM_CPU, _RANK_CPU) if plan.on_cpu else (_PROGRAM_GPU, _RANK_GPU)
    programs = 2 if "ms-swift" in plan.trainer else 1
    terms = [
        make_term("launcher", programs * program, programs=programs, each=program),
        make_term("ranks", ranks * base, ranks=ranks, each=base),
    ]
    if not plan.on_cpu and plan.framework == "megatron":
        children = min(cpus, _MOST_COMPILE_WORKERS)
        size = ranks * (_COMPILER + children * _COMPILE_WORKER)
        values = {"ranks": ranks, "compiler": _COMPILER, "children": children, "each": _COMPILE_WORKER}
        terms.append(make_term("compile_workers", size, **values))
    if ranks * data.workers:
        # input_ids, labels, positions, loss scale, mask: 64 bits each
        batch = data.prefetch * plan.batch.tokens * 8 * 5
        each = _WORKER + batch + (0 if data.forked else program)
        spawned = "" if data.forked else ": not forked, each imports the program again"
        size, each_has = ranks * data.workers * each, {"workers": data.workers, "each": each}
        terms.append(make_term("data_workers", size, ranks=ranks, spawned=spawned, **each_has))
    if plan.on_cpu:
        terms += _on_cpu(plan, ranks, steps)
    elif plan.compiled_loss and plan.framework == "megatron":
        terms.append(_pinned_logits(plan))
    if plan.framework == "load":
        return terms + load_host_terms(plan)
    return terms + (_zero_offload(plan) if plan.framework == "hf" else _offloaded(plan))


def _pinned_logits(plan: Plan) -> MemoryTerm:
    """torch.compile tries kernels that write to their input on a copy of it; where that copy would raise the
    GPU's peak it lies in pinned host memory, rounded up to a power of two, and PyTorch keeps it. The compiled
    cross entropy does so with its fp32 logits."""
    ranks = _stages_of_a_node(plan).count(plan.layout.pp - 1) or plan.layout.processes
    vocabulary = vocabulary_of_rank(plan.shape, plan.layout.tp)
    values = tokens_on_rank(plan) * vocabulary
    return make_term("pinned_logits", 2 * pinned_bytes([values], 4.0) * ranks, ranks=ranks, values=values)


def _on_cpu(plan: Plan, ranks: int, steps: int | None) -> list[MemoryTerm]:
    """Without a GPU all that would lie there lies here."""
    stages = range(plan.layout.pp)
    states = max(sum(term.size_bytes for term in state_terms(plan, stage)) for stage in stages)
    work = max(
        each.kept + max(each.logits, each.recomputed + each.working)
        for each in (stage_activations(plan, stage) for stage in stages)
    )
    steps = min(steps or _CPU_KERNEL_STEPS, _CPU_KERNEL_STEPS)
    kernels = ranks * steps * _CPU_KERNELS
    return [
        make_term("states_on_cpu", ranks * states),
        make_term("activations_on_cpu", ranks * math.ceil(work)),
        make_term("kernels_on_cpu", kernels, ranks=ranks, steps=steps, each=_CPU_KERNELS),
    ]


def _stages_of_a_node(plan: Plan) -> list[int]:
    """The stage of each rank of the node that has most of the model. Megatron gives the ranks of a stage
    successive numbers."""
    layout = plan.layout
    per_stage = layout.world // layout.pp
    best: list[int] = []
    best_size = -1
    for node in range(min(layout.nodes, 64)):
        stages = [(node * layout.processes + index) // per_stage for index in range(layout.processes)]
        size = sum(held(plan, stage).all for stage in stages)
        if size > best_size:
            best, best_size = stages, size
    return best


def _optimizer_share(plan: Plan, has: Held) -> tuple[float, list[float]]:
    """Trained parameters whose optimizer state this rank has, and the sizes of the single tensors. With the
    distributed optimizer a rank has whole tensors, but for those that a boundary cuts."""
    dense_by = plan.layout.dense_copies if plan.optimizer.distributed else 1
    expert_by = plan.layout.expert_copies if plan.optimizer.distributed else 1
    dense = _part(has.trained_tensors, has.trained_dense / dense_by, dense_by)
    experts = _part(has.trained_expert_tensors, has.trained_experts / expert_by, expert_by)
    return has.trained_dense / dense_by + has.trained_experts / expert_by, dense + experts


def _part(tensors: Iterable[int], share: float, by: int) -> list[float]:
    """Every so many of the tensors, largest first, up to the share; what is left is a piece of one."""
    taken: list[float] = []
    total = 0.0
    for size in sorted(tensors, reverse=True)[::by]:
        if total + size > share:
            break
        taken.append(size)
        total += size
    return [*taken, share - total] if share > total else taken


def _offloaded(plan: Plan) -> list[MemoryTerm]:
    """Megatron's optimizer in host memory."""
    fraction, aware = plan.optimizer.offload, plan.optimizer.precision_aware
    if not fraction:
        return []
    # Without a precision-aware optimizer the parameters are fp32 already: the pinned copy is what is trained.
    plain_each, pinned_each = (12, 4) if aware else (8, 8)
    plain = pinned = rounded = main = 0.0
    for stage in _stages_of_a_node(plan):
        share, sizes = _optimizer_share(plan, held(plan, stage))
        plain += share * fraction * plain_each
        pinned += share * fraction * pinned_each
        rounded += pinned_bytes(sizes, 4.0) * fraction * (1 if aware else 2)
        # each tensor passes through a pinned 16-bit copy, and one of each size class is kept
        if aware:
            rounded += sum({pinned_bytes([size], 2.0) for size in sizes})
            main += fraction * (4 * share + 4 * sum(size for size in sizes if 2 * size < _MAPPED))
    what = "fp32 parameters 4, moments 8" if aware else "moments 8"
    pin = "fp32 gradients 4" if aware else "fp32 parameters 4 and gradients 4"
    factor = rounded / pinned if pinned else 1.0
    terms = [
        make_term("offloaded", plain, share=fraction, what=what),
        make_term("offloaded_pinned", rounded, share=fraction, what=pin, factor=factor),
    ]
    if main and plan.data.workers and plan.data.forked:
        terms.append(make_term("old_pages", main))
    return terms


def _zero_offload(plan: Plan) -> list[MemoryTerm]:
    how, has, terms = plan.sharding, held(plan, 0), []
    if how.optimizer_on_cpu:
        terms.append(make_term("zero_offloaded", has.trained / plan.layout.nodes * 16))
    if how.parameters_on_cpu:
        terms.append(make_term("zero_offloaded_parameters", has.all / plan.layout.nodes * 2 * 2))
    return terms


def save_terms(plan: Plan) -> list[MemoryTerm]:
    """On top of `host_terms`, while a checkpoint is written."""
    if plan.framework == "load":
        return []
    if plan.framework == "hf":
        return _hf_save(plan)
    save, ranks = plan.save, plan.layout.processes
    terms = _sharded_save(plan, ranks) if save.sharded else []
    if save.sharded and save.optimizer and save.gathered and plan.layout.dense_copies > 1:
        first = max(held(plan, stage).trained for stage in _stages_of_a_node(plan))
        holders = 1 if save.gathered_on_first else ranks
        terms.append(make_term("gathered", 12 * first * holders, parameters=first, ranks=holders))
    if save.safetensors:
        model = count(plan.shape) * 2
        shard = min(save.shard_bytes, model)
        hidden = plan.shape.hidden
        tensor = 2 * max(plan.shape.vocabulary * hidden, hidden * plan.shape.ffn)
        more = f" and a tensor of {format_bytes(tensor)}" if model > shard else ""
        terms.append(make_term("safetensors", shard + (tensor if more else 0), shard=shard, tensor=more))
        if ranks > 1:
            terms.append(make_term("other_ranks", (ranks - 1) * tensor, others=ranks - 1, tensor=tensor))
    return terms


def _sharded_save(plan: Plan, ranks: int) -> list[MemoryTerm]:
    save, terms = plan.save, []
    staged, exact, what = _staged(plan)
    writer = _WRITER_CPU if plan.on_cpu else _WRITER_GPU
    persistent = save.asynchronous and save.persistent_worker
    if plan.on_cpu:
        terms.append(make_term("cloned", exact))
    elif staged:
        worker = " in the worker process" if persistent else ""
        terms.append(make_term("staged", staged, what=what, worker=worker, factor=staged / max(exact, 1)))
    terms.append(make_term("writers", ranks * writer, ranks=ranks, each=writer))
    if persistent:
        terms.append(make_term("checkpoint_workers", ranks * (_RANK_GPU // 2), ranks=ranks))
    return terms


def _staged(plan: Plan) -> tuple[float, float, str]:
    """(bytes pinned, bytes without rounding, their formula) of all ranks of a node. Each shard is copied to
    the host whole before the first byte is written, in synchronous saves as well. What is in host memory
    already is not copied."""
    layout, opt = plan.layout, plan.optimizer
    rounded = exact = 0.0
    with_optimizer = plan.save.optimizer and opt.offload < 1.0
    lora = plan.tuning.kind == "lora"
    for stage in _stages_of_a_node(plan):
        has = held(plan, stage)
        # The same weights lie on all data-parallel ranks; each writes a part
        # (FullyParallelSaveStrategyWrapper).
        both = (
            (has.trained_tensors, has.trained_expert_tensors) if lora else (has.tensors, has.expert_tensors)
        )
        written = both[0] + both[1]
        rounded += pinned_bytes(written[:: layout.dense_copies], plan.precision.weight)
        exact += (has.trained if lora else has.all) * plan.precision.weight / layout.dense_copies
        if with_optimizer:
            share, sizes = _optimizer_share(plan, has)
            each = 3 if opt.kind == "adam" else 2
            stays = 1.0 - opt.offload
            rounded += each * pinned_bytes(sizes, 4.0) * stays
            exact += each * 4 * share * stays
    parts = "weights 2 bytes" + (" and optimizer 12 bytes" if with_optimizer else "")
    return rounded, exact, f"{parts} a parameter of what each of {layout.processes} ranks writes"


def _hf_save(plan: Plan) -> list[MemoryTerm]:
    has, how = held(plan, 0), plan.sharding
    whole = (has.trained if plan.tuning.kind == "lora" else has.all) * 2
    if how.kind == "fsdp" or (how.stage == 3 and how.gather_on_save):
        return [make_term("gathered_weights", whole)]
    return [make_term("hf_safetensors", min(whole, plan.save.shard_bytes))] if whole else []


def checkpoint_bytes(plan: Plan) -> int:
    """On disk, all ranks together."""
    trained = count(plan.shape)
    if plan.framework == "load":
        return trained * 2 if plan.save.sharded else 0
    if plan.tuning.kind == "lora":
        trained = sum(held(plan, stage).trained for stage in range(plan.layout.pp)) * plan.layout.tp
    sharded = trained * (14 if plan.save.optimizer else 2) if plan.save.sharded else 0
    return sharded + (trained * 2 if plan.save.safetensors else 0)
