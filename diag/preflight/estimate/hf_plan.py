"""The plan of `swift sft|pt|rlhf` and of scripts with the Hugging Face trainer's flags: data parallelism,
DeepSpeed ZeRO, FSDP.

Names and defaults: swift/arguments of ms-swift 4.6.0 and swift/llm/argument of 3.x; transformers'
TrainingArguments; the ZeRO configurations of swift/config.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diag.launch.launchers.command import Command, CommandError
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
)

_LENGTHS = ("max_length", "max_seq_length", "model_max_length", "cutoff_len", "block_size")
_STAGES = ("dpo", "orpo", "simpo", "kto", "cpo", "rm", "ppo", "grpo", "gkd")
_PAIRS = ("dpo", "orpo", "cpo", "simpo", "rm")
_WITH_REFERENCE = ("dpo", "kto", "ppo", "grpo")
_PRESETS: dict[str, tuple[int, bool, bool]] = {  # swift/config: stage, optimizer and parameters on the CPU
    "zero0": (0, False, False),
    "zero1": (1, False, False),
    "zero2": (2, False, False),
    "zero2_offload": (2, True, False),
    "zero3": (3, False, False),
    "zero3_offload": (3, True, True),
    "zero++": (3, False, False),
}

_OTHERWISE = {
    "DeepSpeed": f"one of {', '.join(_PRESETS)}",
    "FSDP": "options such as full_shard",
}


def hf_plan(flags: Flags, command: Command, processes: int, nodes: int, folder: Path = Path()) -> Plan:
    program, verb, distributed = command.program, command.verb, command.distributed
    assumed: list[str] = []
    stage = verb or "sft"
    if verb == "rlhf":
        stage = flags.choice("rlhf_type", of=_STAGES, default="dpo")
    name, shape = find_shape(flags, assumed)
    is_swift = program == "swift"
    tuning = _tuning(flags, assumed, is_swift=is_swift)
    kind = tuning.kind
    sharding = _sharding(flags, distributed, folder)
    full16 = flags.text("torch_dtype", default="bfloat16") not in ("float32", "fp32")
    packed, sequence, limited = longest_sequence(flags, _LENGTHS, shape.max_positions, assumed, "max_length")
    split = flags.whole("sequence_parallel_size", default=1, most=4096)
    if (processes * nodes) % split:
        by = f"--sequence_parallel_size {split}"
        raise CommandError(f"{processes * nodes} processes cannot be divided by {by}")
    checkpointing = flags.flag("gradient_checkpointing", default=is_swift)
    micro = flags.whole("per_device_train_batch_size", default=1 if is_swift else 8)
    # swift/trainers/arguments.py, 3.7 to 4.5: as many as make 16 samples a step
    default_steps = max(1, math.ceil(16 / micro / (processes * nodes))) if is_swift and stage != "grpo" else 1
    steps = flags.whole("gradient_accumulation_steps", default=default_steps)
    workers = flags.whole("dataloader_num_workers", default=1 if is_swift else 0, least=0, most=10_000)
    liger = flags.flag("use_liger_kernel") and stage in ("sft", "pt")
    attention = flags.text("attn_impl", "attn_implementation", default="sdpa")
    sharded_state = sharding.kind != "none" and sharding.stage > 0
    return Plan(
        framework="hf",
        stage=stage,
        model=name,
        shape=shape,
        layout=Layout(processes, nodes, cp=split),
        tuning=tuning,
        precision=_precision(sharding, kind, full16=full16),
        optimizer=Optimizer(),
        sharding=sharding,
        recompute=Recompute("full" if checkpointing else "none", "uniform" if checkpointing else "", 1, ()),
        batch=Batch(
            micro,
            micro * steps * processes * nodes // split,
            sequence,
            2 if stage in _PAIRS else 1,
            packed,
            flags.flag("padding_free"),
            limited,
        ),
        save=Save(
            sharded=sharded_state and not flags.flag("save_only_model"),
            optimizer=not flags.flag("save_only_model"),
            safetensors=True,
        ),
        data=Data(workers, flags.flag("streaming"), dataset_bytes(flags)),
        reference=stage in _WITH_REFERENCE and kind == "full",
        attention="liger" if liger else "unfused" if attention == "eager" else "flash",
        fused_gradients=True,
        on_cpu=flags.flag("use_cpu"),
        trainer="ms-swift on the Hugging Face trainer" if is_swift else "the Hugging Face trainer's flags",
        assumed=tuple(assumed),
    )


def _tuning(flags: Flags, assumed: list[str], *, is_swift: bool) -> Tuning:
    tuner = flags.text(
        "tuner_type", "train_type", "sft_type", "finetuning_type", default="lora" if is_swift else "full"
    )
    if flags.flag("use_lora") or flags.flag("use_peft"):
        tuner = "lora"
    if tuner not in ("full", "lora"):
        assumed.append(f"tuner {tuner} is counted as LoRA")
    quantized = None
    if flags.text("quant_bits", "load_in_4bit") in ("4", "true", "True"):
        quantized = 0.55
    elif flags.text("quant_bits") == "8":
        quantized = 1.0
    return Tuning(
        "full" if tuner == "full" else "lora",
        flags.whole("lora_rank", "lora_r", default=8, most=65536),
        flags.share("freeze_parameters_ratio", default=0.0),
        quantized,
    )


def _precision(sharding: Sharding, kind: str, *, full16: bool) -> Precision:
    """ZeRO trains bf16 weights with fp32 copies; FSDP under accelerate makes trained weights fp32 and
    computes in bf16; plain data parallelism of a model loaded in bf16 has nothing in fp32; LoRA's own weights
    are fp32 (peft)."""
    if sharding.kind == "zero" and full16:
        return Precision(2.0, 2.0, 4.0, 4.0, 4.0)
    if sharding.kind == "fsdp" or kind == "lora" or not full16:
        return Precision(4.0, 4.0, 0.0, 4.0, 4.0)
    return Precision(2.0, 2.0, 0.0, 2.0, 2.0)


def _sharding(flags: Flags, distributed: Mapping[str, Any], folder: Path) -> Sharding:
    given = flags.text("deepspeed", "deepspeed_config") or str(distributed.get("deepspeed_config_file") or "")
    if given in _PRESETS:
        stage, optimizer, parameters = _PRESETS[given]
        return Sharding("zero", stage, optimizer, parameters)
    if given:
        return _zero_file(given, folder)
    if flags.text("fsdp") or distributed.get("kind") == "fsdp":
        return _fsdp(flags, distributed, folder)
    if distributed.get("kind") == "deepspeed":
        return Sharding(
            "zero",
            _stage(distributed.get("zero_stage", 2), "--zero_stage"),
            distributed.get("offload_optimizer_device") == "cpu",
            distributed.get("offload_param_device") == "cpu",
        )
    return Sharding()


def _stage(value: Any, who: str) -> int:
    try:
        stage = int(value)
    except (TypeError, ValueError):
        stage = -1
    if stage not in (0, 1, 2, 3):
        raise CommandError(f"{who} is {value!r}", hint="0, 1, 2 or 3")
    return stage


def _read_config(given: str, folder: Path, kind: str) -> dict[str, Any]:
    try:
        text = given if given.lstrip().startswith("{") else (folder / given).expanduser().read_text()
        config = json.loads(text)
    except OSError as error:
        what = f"cannot read the {kind} configuration {given}: {error.strerror}"
        raise CommandError(what, hint=f"a JSON file, or {_OTHERWISE[kind]}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"the {kind} configuration {given[:80]} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _zero_file(given: str, folder: Path) -> Sharding:
    zero = _read_config(given, folder, "DeepSpeed").get("zero_optimization")
    if not isinstance(zero, dict):
        return Sharding("zero", 0)

    def device(part: str) -> bool:
        inner = zero.get(part)
        return isinstance(inner, dict) and inner.get("device") in ("cpu", "nvme")

    def elements(key: str, default: int) -> int:
        value = zero.get(key)
        return int(value) if isinstance(value, (int, float)) and 0 < value < 1e15 else default

    return Sharding(
        "zero",
        _stage(zero.get("stage", 0), "zero_optimization.stage"),
        device("offload_optimizer"),
        device("offload_param"),
        elements("reduce_bucket_size", 500_000_000),
        elements("stage3_max_live_parameters", 1_000_000_000),
        bool(zero.get("stage3_gather_16bit_weights_on_model_save", True)),
    )


def _fsdp(flags: Flags, distributed: Mapping[str, Any], folder: Path) -> Sharding:
    text = " ".join(flags.words("fsdp")).lower()
    if text.endswith(".json"):
        text = str(_read_config(flags.text("fsdp"), folder, "FSDP").get("fsdp", "full_shard"))
    strategy = str(distributed.get("fsdp_sharding_strategy", "")).lower()
    reshard = str(distributed.get("fsdp_reshard_after_forward", "true")).lower()
    part = (
        "shard_grad_op" in text or strategy in ("2", "shard_grad_op") or reshard in ("false", "shard_grad_op")
    )
    offload = "offload" in text or str(distributed.get("fsdp_offload_params", "")).lower() == "true"
    return Sharding("fsdp", 2 if part else 3, offload, offload)
