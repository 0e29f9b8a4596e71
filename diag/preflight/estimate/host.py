"""Host memory of one node: what the processes need all the time, and what a save needs on top."""

from __future__ import annotations

import math
from collections.abc import Iterable

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.activations import stage_activations, tokens_on_rank
from diag.preflight.estimate.parameters import count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import Held, held, padded_vocabulary, pinned_bytes, state_terms
from diag.text.units import format_bytes, format_count, format_magnitude, format_ratio

_MIB = 1 << 20
_FILES = "Megatron-LM core/dist_checkpointing/strategies/filesystem_async.py"
_HYBRID = "Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py"
_MEASURED = "measured, docs/estimate.md"

# Anonymous memory of processes as the cgroup counts it (shared pages once): ms-swift 4.6.0 on H200 (torch
# 2.11, 32 CPUs), and on a CPU (torch 2.13). docs/estimate.md has the measurements.
# a process that only imports torch and waits: the CLI, torchrun
_PROGRAM_GPU, _PROGRAM_CPU = (290 * _MIB, 155 * _MIB)
_RANK_GPU, _RANK_CPU = 2000 * _MIB, 400 * _MIB  # after the first step
_WORKER = 70 * _MIB  # what comes to be a forked DataLoader worker's own
# torch/_inductor/config.py: compile_threads
_COMPILER, _COMPILE_WORKER, _MOST_COMPILE_WORKERS = (250 * _MIB, 18 * _MIB, 32)
_MAPPED = 32 * _MIB  # malloc gives larger pieces back at once: M_MMAP_THRESHOLD_MAX
# Holds the queue of written files. It is spawned, so that it imports all again, and kept after the save; 410
# to 490 on H200.
_WRITER_GPU, _WRITER_CPU = 450 * _MIB, 200 * _MIB
# a step: oneDNN keeps a kernel for each shape it meets, and experts meet a new one each time
_CPU_KERNELS = 43 * _MIB
_CPU_KERNEL_STEPS = 16


def host_terms(plan: Plan, steps: int | None = None, cpus: int = 32) -> list[MemoryTerm]:
    """Of the node whose ranks need most."""
    ranks = plan.layout.processes
    program = _PROGRAM_CPU if plan.on_cpu else _PROGRAM_GPU
    programs = 2 if "ms-swift" in plan.trainer else 1
    base = _RANK_CPU if plan.on_cpu else _RANK_GPU
    terms = [
        MemoryTerm(
            "launcher",
            programs * program,
            f"{programs} x {format_bytes(program)}: what imports torch and waits",
            _MEASURED,
        ),
        MemoryTerm("ranks", ranks * base, f"{format_count(ranks, 'rank')} x {format_bytes(base)}", _MEASURED),
    ]
    if not plan.on_cpu and plan.framework == "megatron":
        children = min(cpus, _MOST_COMPILE_WORKERS)
        each = _COMPILER + children * _COMPILE_WORKER
        terms.append(
            MemoryTerm(
                "compile workers",
                ranks * each,
                f"{format_count(ranks, 'rank')} x ({format_bytes(_COMPILER)} + {children} x {format_bytes(_COMPILE_WORKER)})",
                "torch/_inductor/compile_worker; " + _MEASURED,
            )
        )
    workers = ranks * plan.data.workers
    if workers:
        # input_ids, labels, positions, loss scale, mask: 64 bits each
        batch = plan.data.prefetch * plan.batch.tokens * 8 * 5
        each = _WORKER + batch + (0 if plan.data.forked else program)
        terms.append(
            MemoryTerm(
                "data workers",
                workers * each,
                f"{format_count(ranks, 'rank')} x {format_count(plan.data.workers, 'worker')} x {format_bytes(each)}"
                + ("" if plan.data.forked else ": not forked, each imports the program again"),
                _MEASURED,
            )
        )
    if plan.on_cpu:
        terms += _on_cpu(plan, ranks, steps)
    elif plan.framework == "megatron":
        terms += _tuning_copies(plan)
    terms += _offloaded(plan)
    return terms


def _tuning_copies(plan: Plan) -> list[MemoryTerm]:
    """torch.compile tries kernels that write to their input on a copy of it; where that copy would raise the
    GPU's peak it lies in pinned host memory, rounded up to a power of two, and PyTorch keeps it. The compiled
    cross entropy does so with its fp32 logits."""
    if not plan.compiled_loss:
        return []
    stages = [stage for stage in _stages_of_a_node(plan) if stage == plan.layout.pp - 1] or [
        plan.layout.pp - 1
    ] * plan.layout.processes
    vocabulary = padded_vocabulary(plan.shape, plan.layout.tp) // plan.layout.tp
    values = tokens_on_rank(plan) * vocabulary
    size = pinned_bytes([values], 4.0)
    return [
        MemoryTerm(
            "pinned copies of logits",
            2 * size * len(stages),
            f"{format_count(len(stages), 'rank')} x 2 x {format_magnitude(values)} fp32 values, rounded up to a power "
            "of two; from step 1 on",
            "torch/_inductor/runtime/triton_heuristics.py: copy_args_to_cpu_if_needed; " + _MEASURED,
        )
    ]


def _on_cpu(plan: Plan, ranks: int, steps: int | None) -> list[MemoryTerm]:
    """Without a GPU all that would lie there lies here."""
    states = max(sum(term.size_bytes for term in state_terms(plan, stage)) for stage in range(plan.layout.pp))
    work = max(
        (
            activations.kept + max(activations.logits, activations.recomputed + activations.working)
            for activations in (stage_activations(plan, stage) for stage in range(plan.layout.pp))
        ),
        default=0.0,
    )
    learnt = min(steps or _CPU_KERNEL_STEPS, _CPU_KERNEL_STEPS)
    return [
        MemoryTerm(
            "model and optimizer",
            ranks * states,
            "as on a GPU: this job runs without one",
            "see the GPU terms",
        ),
        MemoryTerm("activations", ranks * math.ceil(work), "as on a GPU", "see the GPU terms"),
        MemoryTerm(
            "CPU kernels",
            ranks * learnt * _CPU_KERNELS,
            f"{format_count(ranks, 'rank')} x {learnt} steps x {format_bytes(_CPU_KERNELS)}",
            "oneDNN compiles a kernel for each shape, and experts get another number of tokens each time; "
            + _MEASURED,
        ),
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
    if plan.framework == "hf":
        return _zero_offload(plan)
    if not plan.optimizer.offload:
        return []
    fraction = plan.optimizer.offload
    plain = pinned = rounded = main = 0.0
    for stage in _stages_of_a_node(plan):
        share, sizes = _optimizer_share(plan, held(plan, stage))
        params_pinned = not plan.optimizer.precision_aware  # fp32 already: the pinned copy is what is trained
        plain += share * fraction * (8 if params_pinned else 12)
        pinned += share * fraction * (8 if params_pinned else 4)
        rounded += pinned_bytes(sizes, 4.0) * fraction * (2 if params_pinned else 1)
        # each tensor passes through a pinned 16-bit copy, and one of each size class is kept
        if not params_pinned:
            rounded += sum({pinned_bytes([size], 2.0) for size in sizes})
            main += fraction * (4 * share + 4 * sum(size for size in sizes if 2 * size < _MAPPED))
    what = "moments 8" if not plan.optimizer.precision_aware else "fp32 parameters 4, moments 8"
    pin = "fp32 parameters 4 and gradients 4" if not plan.optimizer.precision_aware else "fp32 gradients 4"
    terms = [
        MemoryTerm(
            "offloaded optimizer",
            math.ceil(plain),
            f"{format_ratio(fraction)} of it: {what} bytes a parameter",
            _HYBRID,
        ),
        MemoryTerm(
            "pinned buffers of it",
            math.ceil(rounded),
            f"{format_ratio(fraction)} of it: {pin} bytes a parameter, each tensor rounded up to a power of "
            f"two (x {rounded / pinned:.2f})"
            if pinned
            else "none",
            _HYBRID + "; PyTorch's pinned allocator",
        ),
    ]
    if main and plan.data.workers and plan.data.forked:
        terms.append(
            MemoryTerm(
                "old pages in data workers",
                math.ceil(main),
                "forked workers hold the pages that the first step overwrites: fp32 parameters 4 bytes, and 4 that malloc "
                "kept of 16-bit copies (of tensors below 32 MiB)",
                _MEASURED,
            )
        )
    return terms


def _zero_offload(plan: Plan) -> list[MemoryTerm]:
    how, terms = plan.sharding, []
    trained = held(plan, 0).trained / plan.layout.nodes
    if how.optimizer_on_cpu:
        terms.append(
            MemoryTerm(
                "offloaded optimizer",
                math.ceil(trained * 16),
                "fp32 parameters 4, gradients 4, moments 8 bytes",
                "DeepSpeed runtime/zero: cpu_offload",
            )
        )
    if how.parameters_on_cpu:
        terms.append(
            MemoryTerm(
                "offloaded parameters",
                math.ceil(held(plan, 0).all / plan.layout.nodes * 2 * 2),
                "2 bytes a parameter, pinned, and the gradients beside them",
                "DeepSpeed runtime/zero/stage3.py",
            )
        )
    return terms


def save_terms(plan: Plan) -> list[MemoryTerm]:
    """On top of `host_terms`, while a checkpoint is written."""
    return _hf_save(plan) if plan.framework == "hf" else _megatron_save(plan)


def _megatron_save(plan: Plan) -> list[MemoryTerm]:
    save, ranks, terms = plan.save, plan.layout.processes, []
    if save.sharded:
        staged, exact, what = _staged(plan)
        writer = _WRITER_CPU if plan.on_cpu else _WRITER_GPU
        worker = " in the worker process" if save.asynchronous and save.persistent_worker else ""
        if plan.on_cpu:
            terms.append(
                MemoryTerm(
                    "copies of optimizer state",
                    math.ceil(exact),
                    "views are cloned before they are written",
                    _FILES,
                )
            )
        elif staged:
            terms.append(
                MemoryTerm(
                    "staged shards",
                    math.ceil(staged),
                    f"{what}{worker}; pinned, each tensor rounded up to a power of two (x {staged / max(exact, 1):.2f}), "
                    "and kept after the first save",
                    _FILES + ": preload_tensors",
                )
            )
        terms.append(
            MemoryTerm(
                "writer processes",
                ranks * writer,
                f"{format_count(ranks, 'rank')} x {format_bytes(writer)}, kept",
                _FILES + "; " + _MEASURED,
            )
        )
        if save.asynchronous and save.persistent_worker:
            terms.append(
                MemoryTerm(
                    "checkpoint workers",
                    ranks * (_RANK_GPU // 2),
                    f"{ranks} spawned processes with CUDA",
                    "Megatron-LM async_utils.py: PersistentAsyncCaller",
                )
            )
    if save.sharded and save.optimizer and save.gathered and plan.layout.dense_copies > 1:
        first = max((held(plan, stage).trained for stage in _stages_of_a_node(plan)), default=0)
        holders = 1 if save.gathered_on_first else ranks
        terms.append(
            MemoryTerm(
                "gathered optimizer",
                math.ceil(12 * first * holders),
                f"12 bytes x {format_magnitude(first)} parameters on {format_count(holders, 'rank')}, in ordinary memory",
                "Megatron-LM distrib_optimizer.py: get_parameter_state_dp_zero",
            )
        )
    if save.safetensors:
        model = count(plan.shape) * 2
        shard = min(save.shard_bytes, model)
        tensor = 2 * max(
            padded_vocabulary(plan.shape, 1) * plan.shape.hidden, plan.shape.hidden * plan.shape.ffn
        )
        more = model > shard
        terms.append(
            MemoryTerm(
                "safetensors on rank 0",
                shard + (tensor if more else 0),
                f"one shard of {format_bytes(shard)}"
                + (f" and a tensor of {format_bytes(tensor)}" if more else ""),
                "mcore-bridge utils/safetensors.py: StreamingSafetensorSaver",
            )
        )
        if ranks > 1:
            terms.append(
                MemoryTerm(
                    "tensors on other ranks",
                    (ranks - 1) * tensor,
                    f"{ranks - 1} x one whole tensor of {format_bytes(tensor)}",
                    "mcore-bridge bridge/gpt_bridge.py: save_weights exports to the CPU on each rank",
                )
            )
    return terms


def _staged(plan: Plan) -> tuple[float, float, str]:
    """(bytes pinned, bytes without rounding, in words) of all ranks of a node. Each shard is copied to the
    host whole before the first byte is written, in synchronous saves as well. What is in host memory already
    is not copied."""
    save, layout = plan.save, plan.layout
    rounded = exact = 0.0
    with_optimizer = save.optimizer
    for stage in _stages_of_a_node(plan):
        has = held(plan, stage)
        model = has.trained if plan.tuning.kind == "lora" else has.all
        # The same weights lie on all data-parallel ranks; each writes a part
        # (FullyParallelSaveStrategyWrapper).
        tensors = [float(size) for size in _written(plan, has)][:: layout.dense_copies]
        rounded += pinned_bytes(tensors, plan.precision.weight)
        exact += model * plan.precision.weight / layout.dense_copies
        if with_optimizer and plan.optimizer.offload < 1.0:
            share, sizes = _optimizer_share(plan, has)
            each = 3 if plan.optimizer.kind == "adam" else 2
            stays = 1.0 - plan.optimizer.offload
            rounded += each * pinned_bytes(sizes, 4.0) * stays
            exact += each * 4 * share * stays
    parts = "weights 2 bytes" + (
        " and optimizer 12 bytes" if with_optimizer and plan.optimizer.offload < 1.0 else ""
    )
    return rounded, exact, f"{parts} a parameter of what each of {layout.processes} ranks writes"


def _written(plan: Plan, has: Held) -> tuple[int, ...]:
    lora = plan.tuning.kind == "lora"
    return has.trained_tensors + has.trained_expert_tensors if lora else has.tensors + has.expert_tensors


def _hf_save(plan: Plan) -> list[MemoryTerm]:
    terms = []
    has = held(plan, 0)
    whole = (has.trained if plan.tuning.kind == "lora" else has.all) * 2
    if plan.sharding.kind == "fsdp" or (plan.sharding.stage == 3 and plan.sharding.gather_on_save):
        terms.append(
            MemoryTerm(
                "gathered weights on rank 0",
                whole,
                "2 bytes a parameter",
                "DeepSpeed stage3_gather_16bit_weights_on_model_save; FSDP FULL_STATE_DICT",
            )
        )
    elif whole:
        terms.append(
            MemoryTerm(
                "safetensors on rank 0",
                min(whole, plan.save.shard_bytes),
                "one shard",
                "transformers save_pretrained",
            )
        )
    return terms


def checkpoint_bytes(plan: Plan) -> int:
    """On disk, all ranks together."""
    whole = count(plan.shape)
    trained = (
        sum(held(plan, stage).trained for stage in range(plan.layout.pp)) * plan.layout.tp
        if plan.tuning.kind == "lora"
        else whole
    )
    weights = trained * 2
    total = 0.0
    if plan.save.sharded:
        total += weights + (trained * 12 if plan.save.optimizer else 0)
    if plan.save.safetensors:
        total += weights
    return math.ceil(total)
