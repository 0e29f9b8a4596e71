"""Whatever stands in a command, in a script or in a config.json: an estimate, or one error in words."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from diag.knowledge import swift_flags
from diag.launch.launchers.command import CommandError
from diag.launch.launchers.command.shell_script import read_script
from diag.preflight.estimate import estimate
from diag.preflight.estimate.model_shape import MODELS, shape_from_config
from diag.preflight.estimate.parameters import count
from diag.text.tables import load_table

KNOWN_MODELS = load_table(MODELS)["models"]

TEXT = """
megatron swift rlhf sft torchrun srun accelerate launch deepspeed python -m bash -c env A=1 NPROC_PER_NODE=4 --nproc_per_node
--nnodes 2 8 0 -1 true none full nan x.py -- --model Qwen3-8B Qwen3-30B-A3B --deepspeed zero3 --fsdp --packing --max_length
--tensor_model_parallel_size --pipeline_model_parallel_size --expert_model_parallel_size --virtual_pipeline_model_parallel_size
--recompute_granularity --micro_batch_size --optimizer_cpu_offload --freeze_parameters_ratio 0.5 --tuner_type lora
"""
OF_3 = swift_flags.flags("megatron sft", (3, 12)) - swift_flags.flags("megatron sft", (4, 6))
WORDS = [*TEXT.split(), *(f"--{name}" for name in sorted(OF_3))]


@settings(max_examples=100, deadline=None)
@example(["bash", "\0"])
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=12))
def test_any_words_end_in_an_estimate_or_in_an_error_in_words(words: list[str]) -> None:
    with contextlib.suppress(CommandError):
        estimate(words, {}, folder=Path("/nonexistent"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=10))
def test_any_flags_of_a_real_command_end_so_too(words: list[str]) -> None:
    with contextlib.suppress(CommandError):
        estimated = estimate(
            ["megatron", "rlhf", "--model", "Qwen3-30B-A3B", "--max_length", "128", *words],
            {"NPROC_PER_NODE": "8"},
        )
        assert estimated.gpu_bytes >= 0 and estimated.host_bytes > 0


values = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**50)
    | st.text(max_size=3)
    | st.lists(st.integers(), max_size=2)
)
NAMES = """
hidden_size num_hidden_layers num_experts head_dim num_key_value_heads decoder_sparse_step mlp_only_layers n_shared_experts
first_k_dense_replace kv_lora_rank text_config layer_types model_type vocab_size shared_expert_intermediate_size
num_experts_per_tok moe_intermediate_size
"""
KEYS = NAMES.split()


@settings(max_examples=100, deadline=None)
@example("qwen3-235b-a22b", {"n_shared_experts": ":"})
@example("llama-3-70b", {"num_key_value_heads": 0})
@example("qwen3-235b-a22b", {"mlp_only_layers": "0"})
@example("qwen3-235b-a22b", {"first_k_dense_replace": "0"})
@given(st.sampled_from(sorted(KNOWN_MODELS)), st.dictionaries(st.sampled_from(KEYS), values, max_size=3))
def test_any_config_ends_in_a_count_or_in_an_error_in_words(model: str, change: dict[str, Any]) -> None:
    with contextlib.suppress(CommandError):
        shape, _ = shape_from_config({**KNOWN_MODELS[model], **change})
        assert count(shape) >= 0


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="aA=$(){}[]\"'\\#;&| \n-@*1:", max_size=60))
def test_any_script_text_raises_nothing(text: str) -> None:
    read_script(text, ["1"], {"A": "$A"})
