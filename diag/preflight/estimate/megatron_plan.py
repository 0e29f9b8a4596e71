"""The plan of `megatron sft|pt|rlhf` (ms-swift 3.7-3.12 and 4.x names and defaults) and of Megatron-LM's own
pretrain scripts.

Defaults are those of swift/megatron/argument(s)/megatron_args.py of ms-swift 3.7.3, 3.8.3, 3.9.3, 3.10.3,
3.11.3, 3.12.6, 4.0.0 and 4.6.0; where they differ between versions the names in CMD, or the ms-swift
installed beside CMD's program, decide.
"""

from __future__ import annotations

from diag.knowledge import swift_flags
from diag.launch.launchers.command import CommandError
from diag.launch.launchers.command.flags import Flags
from diag.preflight.estimate.model_files import dataset_bytes, find_shape, longest_sequence
from diag.preflight.estimate.plan import (
    Batch,
    Data,
    Layout,
    Optimizer,
    Plan,
    Precision,
    Recompute,
    Save,
    Sharding,
    Tuning,
    parallel_sizes,
)

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_PAIRS = ("dpo", "rm")  # chosen and rejected pass through the model together
_NO_REFERENCE = ("rm", "gkd")  # swift/megatron/trainers/rlhf_mixin.py: prepare_model


def version_of(
    flags: Flags, verb: str, installed: tuple[int, ...] | None, known_from: str = "as installed"
) -> tuple[tuple[int, ...], str]:
    """The ms-swift that CMD is written for, and how that is known."""
    if installed is not None:
        return installed, f"ms-swift {'.'.join(map(str, installed))}, {known_from}"
    version = swift_flags.best_fitting(f"megatron {verb}", flags.names)
    if version == swift_flags.versions()[-1]:
        return version, "ms-swift 4.x"
    return version, f"ms-swift {swift_flags.dotted(version)}, by the flags' names"


def megatron_plan(
    flags: Flags,
    verb: str,
    processes: int,
    nodes: int,
    installed: tuple[int, ...] | None,
    *,
    plain: bool = False,
    known_from: str = "as installed",
) -> Plan:
    """`plain`: Megatron-LM's own script, without ms-swift. `known_from`: where `installed` is from."""
    assumed: list[str] = []
    version, trainer = ((0,), "Megatron-LM") if plain else version_of(flags, verb, installed, known_from)
    stage = verb
    if verb == "rlhf":
        stage = flags.choice("rlhf_type", of=("dpo", "kto", "grpo", "gkd", "rm"), default="dpo")
    name, shape = find_shape(flags, assumed, plain=plain)
    layout = _layout(flags, processes, nodes, shape.layers, shape.experts)
    tuner = flags.choice("tuner_type", "train_type", of=("full", "lora", "lora_llm"), default="full")
    if flags.words("adapters", "ref_adapters", "mcore_adapter", "adapter_load"):
        tuner = "lora"
    frozen = flags.share("freeze_parameters_ratio", default=0.0)
    if flags.words("freeze_parameters", "freeze_parameters_regex"):
        assumed.append("--freeze_parameters is not read: all parameters are counted as trained")
    kind = "lora" if tuner != "full" else "freeze" if frozen else "full"
    tuning = Tuning(kind, flags.whole("lora_rank", default=8, most=65536), frozen)
    if kind == "lora" and flags.words("target_modules", "target_regex") not in ((), ("all-linear",)):
        assumed.append("LoRA is counted as on all linear layers")
    bf16 = not flags.flag("fp16") and flags.text("torch_dtype") not in ("float32", "fp32", "float16")
    aware = flags.flag("use_precision_aware_optimizer")
    offload = flags.flag("optimizer_cpu_offload")
    optimizer = Optimizer(
        kind=flags.choice("optimizer", of=("adam", "sgd", "muon", "dist_muon"), default="adam"),
        distributed=flags.flag("use_distributed_optimizer", default=not plain),
        precision_aware=aware,
        offload=flags.share("optimizer_offload_fraction", default=1.0) if offload else 0.0,
    )
    precision = _precision(flags, aware=aware, bf16=bf16)
    attention = (
        "unfused" if flags.text("attention_backend", default="flash") in ("unfused", "local") else "flash"
    )
    fused_loss = flags.flag("cross_entropy_loss_fusion", default=version >= (4,))
    return Plan(
        framework="megatron",
        stage=stage,
        model=name,
        shape=shape,
        layout=layout,
        tuning=tuning,
        precision=precision,
        optimizer=optimizer,
        sharding=Sharding(),
        recompute=_recompute(flags, plain=plain),
        batch=_batch(flags, stage, shape.max_positions, assumed, plain=plain, attention=attention),
        save=_save(flags, version, plain),
        data=_data(flags),
        reference=stage in ("dpo", "kto", "grpo") and kind != "lora" and stage not in _NO_REFERENCE,
        # 3.7.1 to 3.8.2, dpo_trainer.py: get_model wraps the reference in DDP, which takes fp32 gradients for all of
        # it; from 3.8.3 on wrap_with_ddp=False. Of 3.x without a version the higher need is counted.
        reference_gradients=stage == "dpo" and kind != "lora" and _before_383(version, installed),
        attention=attention,
        compiled_loss=fused_loss and flags.text("cross_entropy_fusion_impl", default="native") == "native",
        fused_gradients=not flags.flag("no_gradient_accumulation_fusion")
        and flags.flag("gradient_accumulation_fusion", default=True),
        balance_loss=any(_not_zero(word) for word in flags.words("moe_aux_loss_coeff")),
        on_cpu=flags.text("ddp_backend", "distributed_backend") == "gloo",
        trainer=trainer,
        assumed=tuple(assumed),
    )


def _before_383(version: tuple[int, ...], installed: tuple[int, ...] | None) -> bool:
    return version < (3, 8, 3) and version > (0,) if installed is not None else version[0] == 3


def _not_zero(word: str) -> bool:
    try:
        return float(word) != 0
    except ValueError:
        return False


def _layout(flags: Flags, processes: int, nodes: int, layers: int, experts: int) -> Layout:
    tp, pp, cp, ep, etp = parallel_sizes(flags)
    vpp = flags.whole("virtual_pipeline_model_parallel_size", default=1, most=4096)
    per_chunk = flags.maybe_whole("num_layers_per_virtual_pipeline_stage")
    if per_chunk and pp > 1:
        vpp = max(1, layers // pp // per_chunk)
    world = processes * nodes
    needed = tp * pp * cp
    if world % needed:
        raise CommandError(
            f"{world} processes cannot be divided into groups of TP {tp} x PP {pp} x CP {cp} = {needed}",
            hint="set NPROC_PER_NODE and NNODES (or torchrun's --nproc_per_node and --nnodes) to what the job will have",
        )
    if experts and world % (ep * etp * pp):
        raise CommandError(
            f"{world} processes cannot be divided into groups of EP {ep} x ETP {etp} x PP {pp}"
        )
    if ep > 1 and experts and experts % ep:
        raise CommandError(f"{experts} experts cannot be divided by --expert_model_parallel_size {ep}")
    layout = Layout(
        processes,
        nodes,
        tp,
        pp,
        cp,
        ep if experts else 1,
        etp if experts else 1,
        vpp if pp > 1 else 1,
        sequence_parallel=flags.flag("sequence_parallel") and tp > 1,
        first_layers=flags.maybe_whole("decoder_first_pipeline_num_layers") if pp > 1 else None,
        last_layers=flags.maybe_whole("decoder_last_pipeline_num_layers") if pp > 1 else None,
    )
    stages = layout.stage_layers(layers)
    if min(stages) < 1 or sum(stages) != layers:
        raise CommandError(
            f"{layers} layers do not fit {pp} pipeline stages ({', '.join(map(str, stages))} layers)"
        )
    return layout


def _precision(flags: Flags, *, aware: bool, bf16: bool) -> Precision:
    """ms-swift sums gradients in fp32 for bf16 unless main_grads_dtype says otherwise; only a precision-aware
    optimizer keeps its own values in fewer bytes. Main parameters of bf16 weights are 16-bit remainders then
    (store_param_remainders)."""
    names = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    gradient, main, moment1, moment2 = (
        _BYTES[flags.choice(name, of=_BYTES, default="fp32")] for name in names
    )
    if not aware:
        main = moment1 = moment2 = 4.0
    elif bf16 and main == 4.0:
        main = 2.0
    weight = 4.0 if flags.text("torch_dtype") in ("float32", "fp32") else 2.0
    return Precision(weight, gradient if bf16 else 4.0, main, moment1, moment2)


def _recompute(flags: Flags, *, plain: bool) -> Recompute:
    granularity = flags.choice(
        "recompute_granularity", of=("none", "selective", "full"), default="none" if plain else "selective"
    )
    if flags.flag("recompute_activations"):
        granularity = "selective"
    method = flags.choice(
        "recompute_method",
        of=("uniform", "block", "none"),
        default="uniform" if granularity == "full" else "none",
    )
    modules = flags.words("recompute_modules") or ("core_attn",)
    if flags.flag("moe_layer_recompute"):
        modules = (*modules, "moe")
    return Recompute(
        granularity,
        "" if method == "none" else method,
        flags.whole("recompute_num_layers", default=1),
        tuple(modules),
    )


def _batch(
    flags: Flags, stage: str, positions: int, assumed: list[str], *, plain: bool, attention: str
) -> Batch:
    names, limit = ("seq_length", "max_length"), "seq_length" if plain else "max_length"
    packed, sequence, limited = longest_sequence(flags, names, positions, assumed, limit)
    return Batch(
        micro=flags.whole("micro_batch_size", default=1),
        global_size=flags.whole("global_batch_size", default=16),
        sequence=sequence,
        pairs=2 if stage in _PAIRS else 1,
        packed=packed,
        # ms-swift 4.6 turns it off for unfused attention, and says so.
        padding_free=packed or (flags.flag("padding_free", default=not plain) and attention != "unfused"),
        limited=limited,
    )


def _save(flags: Flags, version: tuple[int, ...], plain: bool) -> Save:
    no_optimizer = flags.flag("no_save_optim")
    safetensors = flags.flag("save_safetensors", default=version >= (3, 12)) and not plain
    return Save(
        # swift/megatron/trainers/base.py, save_checkpoint (3.12.6, 4.6.0): with safetensors and no optimizer
        # the model is not written twice
        sharded=not (safetensors and no_optimizer and version >= (3, 12)),
        optimizer=not no_optimizer,
        safetensors=safetensors,
        asynchronous=flags.flag("async_save"),
        persistent_worker=flags.flag("use_persistent_ckpt_worker"),
        gathered=flags.flag("dist_ckpt_optim_fully_reshardable"),
        gathered_on_first=flags.flag("distrib_optim_fully_reshardable_mem_efficient"),
        shard_bytes=_shard_bytes(flags.text("max_shard_size", default="5GB")),
    )


def _shard_bytes(text: str) -> int:
    number = text.upper().removesuffix("GB").removesuffix("B").strip()
    try:
        return int(float(number) * (1e9 if "GB" in text.upper() else 1))
    except (ValueError, OverflowError):
        raise CommandError(f"--max_shard_size is {text!r}", hint="such as 5GB") from None


def _data(flags: Flags) -> Data:
    streaming = flags.flag("streaming")
    workers = flags.whole("dataloader_num_workers", "num_workers", default=4, least=0, most=10_000)
    return Data(
        workers=min(workers, 1) if streaming else workers,
        streaming=streaming,
        bytes_on_disk=dataset_bytes(flags),
        prefetch=flags.whole("dataloader_prefetch_factor", default=2, least=0),
        pin_memory=flags.flag("dataloader_pin_memory", default=True),
        forked=flags.text("dataloader_multiprocessing_context", default="fork") == "fork",
    )
