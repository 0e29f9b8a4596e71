"""Models, flags and versions that do not fit each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .assets import edit_config
from .case import Case, Version, megatron, megatron_environment, swift, swift_environment

__all__ = ["installation_cases", "megatron_model_cases", "model_cases"]

_Prepare = Callable[[Path, Path], None]


def _edited(source: str, **changed: object) -> _Prepare:
    def prepare(work: Path, assets: Path) -> None:
        edit_config(assets / source, work / "model", **changed)

    return prepare


def _cut_weights(work: Path, assets: Path) -> None:
    edit_config(assets / "qwen3-tiny", work / "model")
    file = work / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])


def _broken_header(work: Path, assets: Path) -> None:
    edit_config(assets / "qwen3-tiny", work / "model")
    (work / "model" / "model.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 16381470720\n"
    )


def _no_weights(work: Path, assets: Path) -> None:
    edit_config(assets / "qwen3-tiny", work / "model")
    (work / "model" / "model.safetensors").unlink()


def model_cases(version: Version) -> list[Case]:
    """On the transformers path, for any version."""
    environment = swift_environment(1)
    mine = "{work}/model"

    def case(name: str, expect: str, why: str, prepare: _Prepare | None = None, **flags: str | None) -> Case:
        return Case(name, expect, why, swift(version, **flags), environment, prepare)

    return [
        case(
            "no-model",
            "checkpoint-missing",
            "the model folder does not exist",
            model="/workspace/models/missing",
            model_type=None,
        ),
        case(
            "hub-offline",
            "checkpoint-missing",
            "a model of the hub, offline and not in the cache",
            model="Qwen/Qwen3-0.6B",
            use_hf="true",
        ),
        case(
            "unknown-model-type",
            "rank-died",
            "--model_type names a type that ms-swift does not have",
            model_type="qwen9_moe",
        ),
        case(
            "unknown-architecture",
            "version-mismatch",
            "config.json names a model type that this transformers does not know",
            _edited("qwen3-tiny", model_type="qwen9", architectures=["Qwen9ForCausalLM"]),
            model=mine,
        ),
        case(
            "config-shapes",
            "checkpoint-args-mismatch",
            "config.json says hidden_size 128, the weights have 64",
            _edited("qwen3-tiny", hidden_size=128),
            model=mine,
        ),
        case(
            "weights-cut",
            "checkpoint-corrupt",
            "the last 5000 bytes of model.safetensors are missing",
            _cut_weights,
            model=mine,
        ),
        case(
            "weights-lfs-pointer",
            "checkpoint-corrupt",
            "model.safetensors is a git-lfs pointer",
            _broken_header,
            model=mine,
        ),
        case("no-weights", "checkpoint-missing", "the model folder has no weights", _no_weights, model=mine),
        case("unknown-argument", "rank-died", "a flag with a typing error", per_device_train_batchsize="4"),
        case("wrong-value", "rank-died", "a word where a number is wanted", max_length="2k"),
        case(
            "megatron-flags",
            "rank-died",
            "flags of `megatron rlhf` given to `swift rlhf`",
            micro_batch_size="2",
            train_iters="8",
        ),
        case("unknown-template", "rank-died", "--template names none that ms-swift has", template="qwen9"),
        case(
            "flash-attn-missing",
            "missing-module",
            "attn_impl flash_attn without flash-attn installed",
            attn_impl="flash_attention_2",
        ),
        case(
            "nccl-without-gpu",
            "nccl-init-error",
            "ddp_backend nccl with a CPU build of torch",
            ddp_backend="nccl",
        ),
    ]


def megatron_model_cases(version: Version) -> list[Case]:
    """Parallel sizes and flags of `megatron rlhf` 4.x."""

    def case(
        name: str, expect: str, why: str, prepare: _Prepare | None = None, ranks: int = 2, **flags: str | None
    ) -> Case:
        return Case(f"megatron-{name}", expect, why, megatron(**flags), megatron_environment(ranks), prepare)

    return [
        case(
            "tp-heads",
            "launch-mismatch",
            "tensor_model_parallel_size 3 for 4 attention heads",
            ranks=3,
            tensor_model_parallel_size="3",
            expert_model_parallel_size="1",
            global_batch_size="2",
        ),
        case(
            "ep-world",
            "launch-mismatch",
            "expert_model_parallel_size 4 on 2 ranks",
            expert_model_parallel_size="4",
        ),
        case(
            "tp-world",
            "launch-mismatch",
            "tensor_model_parallel_size 4 on 2 ranks",
            tensor_model_parallel_size="4",
            expert_model_parallel_size="1",
        ),
        case(
            "batch",
            "launch-mismatch",
            "global_batch_size 7 is no multiple of micro_batch_size 2 times 2 ranks",
            global_batch_size="7",
        ),
        case(
            "pp-layers",
            "launch-mismatch",
            "pipeline_model_parallel_size 3 for 4 layers",
            ranks=3,
            pipeline_model_parallel_size="3",
            expert_model_parallel_size="1",
            global_batch_size="2",
        ),
        case(
            "moe-tp-no-sp",
            "launch-mismatch",
            "tensor parallelism of an MoE model without sequence_parallel",
            tensor_model_parallel_size="2",
            sequence_parallel="false",
        ),
        case(
            "flags-of-3",
            "version-mismatch",
            "flags of ms-swift 3.x (--save, --save_interval, --log_interval) given to 4.x",
            save="{work}/out",
            save_interval="4",
            log_interval="1",
            output_dir=None,
            save_steps=None,
            logging_steps=None,
        ),
        case(
            "experts",
            "launch-mismatch",
            "expert_model_parallel_size 2 for 3 experts",
            _edited("qwen3-moe-tiny", num_experts=3, num_experts_per_tok=2),
            model="{work}/model",
        ),
        case(
            "no-model",
            "checkpoint-missing",
            "the model folder does not exist",
            model="/workspace/models/missing",
        ),
        case(
            "config-shapes",
            "checkpoint-args-mismatch",
            "config.json says moe_intermediate_size 96, the weights have 64",
            _edited("qwen3-moe-tiny", moe_intermediate_size=96),
            model="{work}/model",
        ),
        case(
            "dense-type", "rank-died", "an MoE model with the model_type of a dense one", model_type="qwen3"
        ),
        Case(
            "megatron-no-te",
            "missing-module",
            "no transformer_engine",
            megatron(),
            {**swift_environment(), "PYTHONUNBUFFERED": "1"},
        ),
    ]


def installation_cases(version: Version) -> list[Case]:
    """Run in environments that were broken on purpose; the version's name says how."""
    expect, why = {
        "labs-nomsgspec": ("missing-module", "msgspec is not installed"),
        "labs-nomcore": ("missing-module", "megatron-core is not installed"),
        "labs-bridge162": ("version-mismatch", "mcore-bridge 1.6.2 wants a newer megatron-core than 0.16.1"),
        "labs-bridge165": ("missing-module", "mcore-bridge 1.6.5 imports triton, which is not installed"),
        "labs-trl": ("missing-module", "trl 0.11.4 wants rich, which is not installed"),
        "labs-peft": (
            "version-mismatch",
            "peft 0.10.0 is too old for ms-swift 4.6.0 and transformers 4.57.6",
        ),
    }[version.name]
    name = version.name.removeprefix("labs-")
    return [
        Case(f"megatron-{name}", expect, why, megatron(), megatron_environment()),
        Case(f"dpo-{name}", expect, why, swift(version), swift_environment()),
    ]
