"""Flags of each version and trainer become what they mean; nonsense is refused in words."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from diag.launch.launchers.command import CommandError
from diag.preflight.estimate import Estimate, estimate

MODEL = "--model Qwen/Qwen3-30B-A3B --max_length 2048"


def of(command: str, processes: int = 8, **more: str) -> Estimate:
    return estimate(shlex.split(command), {"NPROC_PER_NODE": str(processes), **more})


def names(estimated: Estimate) -> set[str]:
    return {term.name for need in estimated.needs for term in need.terms} | {
        term.name for term in (*estimated.host, *estimated.save)
    }


def test_defaults_of_ms_swift_4_are_taken_where_nothing_is_said() -> None:
    plan = of(f"megatron rlhf --rlhf_type dpo {MODEL}").plan
    assert (plan.recompute.granularity, plan.recompute.modules) == ("selective", ("core_attn",))
    assert (plan.batch.micro, plan.batch.global_size, plan.data.workers) == (1, 16, 4)
    assert plan.tuning.kind == "full" and plan.reference and plan.optimizer.distributed
    assert plan.save.safetensors and plan.save.sharded and plan.save.optimizer
    assert plan.attention == "flash" and plan.compiled_loss


def test_names_of_ms_swift_3_are_read_with_the_defaults_of_3() -> None:
    flags = "--train_type full --save out --save_interval 100 --num_workers 7 --max_epochs 1"
    plan = of(f"megatron rlhf --rlhf_type dpo {MODEL} {flags}").plan
    assert "3.12" in plan.trainer
    assert plan.data.workers == 7
    assert not plan.compiled_loss  # cross_entropy_loss_fusion is off by default before 4.0


def test_the_installed_ms_swift_decides_over_the_names(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "megatron"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "lib" / "python3.11" / "site-packages" / "ms_swift-3.10.3.dist-info").mkdir(parents=True)
    plan = of(f"megatron sft {MODEL}", PATH=str(tmp_path / "bin")).plan
    assert "3.10.3" in plan.trainer
    assert not plan.save.safetensors  # off by default before 3.12


def test_weights_only_with_safetensors_skips_the_sharded_save() -> None:
    estimated = of(f"megatron rlhf --rlhf_type dpo {MODEL} --no_save_optim true")
    assert not estimated.plan.save.sharded
    assert {term.name for term in estimated.save} == {"safetensors on rank 0", "tensors on other ranks"}


def test_weights_only_without_safetensors_is_sharded_without_the_optimizer() -> None:
    estimated = of(f"megatron sft {MODEL} --no_save_optim true --save_safetensors false")
    assert "staged shards" in names(estimated)
    assert estimated.checkpoint_bytes == 2 * 30_532_122_624


def test_dpo_passes_pairs_and_holds_a_reference_model() -> None:
    sft, dpo = of(f"megatron sft {MODEL}"), of(f"megatron rlhf --rlhf_type dpo {MODEL}")
    assert dpo.plan.batch.tokens == 2 * sft.plan.batch.tokens
    assert "reference model" in names(dpo) and "reference model" not in names(sft)


def test_lora_needs_no_second_model_for_dpo() -> None:
    estimated = of(f"megatron rlhf --rlhf_type dpo {MODEL} --tuner_type lora")
    assert "reference model" not in names(estimated)
    gradients = next(term for term in estimated.needs[0].terms if term.name == "gradients")
    weights = next(term for term in estimated.needs[0].terms if term.name == "weights")
    assert gradients.size_bytes < weights.size_bytes / 10


def test_offloading_leaves_main_parameters_on_the_gpu_unless_the_optimizer_is_precision_aware() -> None:
    plain = of(f"megatron sft {MODEL} --optimizer_cpu_offload true")
    aware = of(f"megatron sft {MODEL} --optimizer_cpu_offload true --use_precision_aware_optimizer true")
    assert "main parameters" in names(plain) and "optimizer moments" not in {
        term.name for term in plain.needs[0].terms
    }
    assert "main parameters" not in names(aware)


def test_spawned_workers_hold_no_old_pages() -> None:
    offload = f"megatron sft {MODEL} --optimizer_cpu_offload true --use_precision_aware_optimizer true"
    assert "old pages in data workers" in names(of(offload))
    assert "old pages in data workers" not in names(
        of(offload + " --dataloader_multiprocessing_context spawn")
    )
    assert "old pages in data workers" not in names(of(offload + " --dataloader_num_workers 0"))


def test_a_gathered_optimizer_is_counted_on_every_rank_or_on_the_first() -> None:
    command = f"megatron sft {MODEL} --dist_ckpt_optim_fully_reshardable true"
    every, first = of(command), of(f"{command} --distrib_optim_fully_reshardable_mem_efficient true")
    gathered = [
        next(term.size_bytes for term in estimated.save if term.name == "gathered optimizer")
        for estimated in (every, first)
    ]
    assert gathered[0] == 8 * gathered[1]


def test_pipeline_stages_differ_and_the_worst_is_reported() -> None:
    estimated = of(f"megatron sft {MODEL} --pipeline_model_parallel_size 4")
    assert len(estimated.needs) == 4
    assert estimated.worst is not None and estimated.worst.total == max(
        need.total for need in estimated.needs
    )


def test_groups_of_a_single_rank_have_communicators_with_megatron_only() -> None:
    """Megatron reduces over its groups whatever their size; the Hugging Face trainer starts no process group
    for one process."""
    assert "NCCL buffers" in names(of("megatron sft --model Qwen/Qwen3-0.6B --max_length 2048", 1))
    assert "NCCL buffers" not in names(of("swift sft --model Qwen/Qwen3-0.6B --max_length 2048", 1))
    assert "NCCL buffers" in names(of("swift sft --model Qwen/Qwen3-0.6B --max_length 2048", 2))


def test_each_rank_that_tokens_are_sent_to_has_its_buffers() -> None:
    words = "megatron sft --model Qwen/Qwen3-30B-A3B --max_length 2048 --expert_model_parallel_size"
    few, many = (
        next(term for term in of(f"{words} {ep}", 8).needs[0].terms if term.name == "NCCL buffers")
        for ep in (2, 8)
    )
    # experts have no copies to reduce with
    assert many.size_bytes - few.size_bytes == 6 * 96 * (1 << 20) + (388 - 484) * (1 << 20)


def test_megatron_lm_is_read_from_its_own_flags() -> None:
    estimated = estimate(
        shlex.split(
            "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
            "--num-attention-heads 32 "
            "--group-query-attention --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 "
            "--seq-length 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer"
        ),
        {},
    )
    assert "8.03B" in estimated.basis
    assert estimated.plan.optimizer.distributed and estimated.plan.recompute.granularity == "none"


@pytest.mark.parametrize(
    ("how", "stage", "offloaded"),
    [("zero2", 2, False), ("zero3", 3, False), ("zero3_offload", 3, True), ("zero2_offload", 2, True)],
)
def test_deepspeed_presets_of_ms_swift(how: str, stage: int, offloaded: bool) -> None:
    estimated = of(f"swift sft --model Qwen/Qwen3-8B --max_length 2048 --tuner_type full --deepspeed {how}")
    assert (estimated.plan.sharding.stage, estimated.plan.sharding.optimizer_on_cpu) == (stage, offloaded)
    assert ("offloaded optimizer" in names(estimated)) == offloaded


def test_a_deepspeed_file_is_read(tmp_path: Path) -> None:
    zero = {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "reduce_bucket_size": "auto",
        }
    }
    (tmp_path / "ds.json").write_text(json.dumps(zero))
    words = shlex.split(
        "deepspeed --num_gpus 4 train.py --model_name_or_path Qwen/Qwen3-8B --deepspeed ds.json --max_length 1024"
    )
    estimated = estimate(words, {}, folder=tmp_path)
    assert (
        estimated.plan.sharding.stage == 3
        and estimated.plan.sharding.optimizer_on_cpu
        and not estimated.plan.sharding.parameters_on_cpu
    )


def test_fsdp_of_accelerate_divides_by_all_ranks() -> None:
    words = shlex.split(
        "accelerate launch --num_processes 8 --use_fsdp train.py --model_name_or_path Qwen/Qwen3-8B --max_length 9"
    )
    estimated = estimate(words, {})
    assert estimated.plan.sharding.kind == "fsdp" and estimated.plan.sharding.stage == 3
    weights = next(term.size_bytes for term in estimated.needs[0].terms if term.name == "weights")
    assert weights == pytest.approx(4 * 8_190_735_360 / 8, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "flag", "message"),
    [
        (None, "fsdp", "cannot read the FSDP configuration c.json: No such file"),
        ("{", "fsdp", "the FSDP configuration c.json is not JSON"),
        (None, "deepspeed", "cannot read the DeepSpeed configuration c.json: No such file"),
        ("{", "deepspeed", "the DeepSpeed configuration c.json is not JSON"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused_by_name(
    text: str | None, flag: str, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "c.json").write_text(text)
    words = ["swift", "sft", "--model", "Qwen3-8B", "--max_length", "9", f"--{flag}", "c.json"]
    with pytest.raises(CommandError, match=message):
        estimate(words, {}, folder=tmp_path)


def test_unknown_flags_are_named_and_no_error() -> None:
    estimated = of(f"megatron sft {MODEL} --tensor_model_paralel_size 2 --frobnicate 3 --lr 1e-5")
    assert estimated.plan.unknown == (
        "--tensor_model_paralel_size (did you mean --tensor_model_parallel_size?)",
        "--frobnicate",
    )


def test_flags_that_have_no_part_in_memory_are_not_called_unknown() -> None:
    flags = (
        "--lr 1e-5 --beta 0.1 --rpo_alpha 0.1 --report_to wandb --save_strategy epoch --split_dataset_ratio 0"
    )
    assert of(f"megatron rlhf --rlhf_type dpo {MODEL} {flags}").plan.unknown == ()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--tensor_model_parallel_size 3", "8 processes cannot be divided"),
        ("--tensor_model_parallel_size 0", "tensor_model_parallel_size is '0'"),
        ("--tensor_model_parallel_size two", "tensor_model_parallel_size is 'two'"),
        ("--tensor_model_parallel_size 99999999999999999999999", "tensor_model_parallel_size is"),
        ("--expert_model_parallel_size 16", "EP 16"),
        ("--recompute_granularity most", "recompute_granularity is 'most'"),
        ("--optimizer_cpu_offload true --optimizer_offload_fraction 2", "optimizer_offload_fraction is '2'"),
        (
            "--optimizer_cpu_offload true --optimizer_offload_fraction nan",
            "optimizer_offload_fraction is 'nan'",
        ),
        ("--sequence_parallel maybe", "neither true nor false"),
        ("--max_shard_size huge", "max_shard_size"),
        ("--pipeline_model_parallel_size 8 --decoder_first_pipeline_num_layers 48", "pipeline stages"),
        ("--micro_batch_size -1", "micro_batch_size is '-1'"),
    ],
)
def test_nonsense_is_refused_with_the_flag_and_its_value(flags: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        of(f"megatron sft {MODEL} {flags}")


def test_sizes_that_are_absurd_but_legal_end_in_numbers() -> None:
    estimated = of(
        f"megatron sft {MODEL} --micro_batch_size 1000000000 --max_length 1000000000 --packing true"
    )
    assert estimated.gpu_bytes > 1 << 60


# What ms-swift 3.8.3, 3.12.6 and 4.6.0 printed as "run sh" on starting their ranks (paths replaced).
COMMANDS = json.loads((Path(__file__).parents[1] / "captures" / "estimate" / "commands.json").read_text())


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_real_runs_are_read_whole(name: str, tmp_path: Path) -> None:
    words = shlex.split(COMMANDS[name])
    words[words.index("--model") + 1] = "Qwen3-30B-A3B" if "moe" in COMMANDS[name] else "Qwen3-0.6B"
    estimated = estimate(words, {}, folder=tmp_path)
    assert estimated.command.program == ("swift" if "hf" in name else "megatron")
    assert estimated.plan.stage == "dpo" and estimated.plan.layout.processes == int(
        words[words.index("--nproc_per_node") + 1]
    )
    assert estimated.plan.unknown == ()
    assert ("3.12" in estimated.plan.trainer) == (
        name in ("mswift3126_megatron_dpo", "mswift383_megatron_dpo")
    )
