"""Parameter totals are exact, and what is no plain decoder is refused with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.launch.launchers.command import CommandError
from diag.launch.launchers.command.flags import parse_flags
from diag.preflight.estimate.model_files import find_shape, known_config, read_config
from diag.preflight.estimate.model_shape import MODELS, shape_from_config
from diag.preflight.estimate.parameters import count, layer_count
from diag.text.tables import load_table

KNOWN_MODELS = load_table(MODELS)["models"]

# What the model cards and the safetensors indexes of these models tell (tied output layers once).
TOTALS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
}

# config.json of deepseek-ai/DeepSeek-V3 and mistralai/Mixtral-8x7B-v0.1, what a count needs. The V3 total is
# without the extra layer for multi-token prediction.
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
}  # fmt: skip


def test_every_known_model_has_a_total_to_be_held_to() -> None:
    assert set(TOTALS) == set(KNOWN_MODELS)


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_of_known_models_are_exact(name: str) -> None:
    assert count(shape_from_config(KNOWN_MODELS[name])[0]) == TOTALS[name]


def test_latent_attention_with_shared_experts_is_counted() -> None:
    assert count(shape_from_config(DEEPSEEK_V3)[0]) == 671_026_419_200


def test_experts_as_wide_as_the_dense_mlp_are_counted() -> None:
    assert count(shape_from_config(MIXTRAL)[0]) == 46_702_792_704


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-8B", "qwen3-8b-base", "Qwen/Qwen3-8B-FP8", "/models/Qwen3-8B/", "unsloth/Qwen3-8B-bf16"],
)
def test_a_model_is_known_by_the_names_people_give_it(name: str) -> None:
    config = known_config(name)
    assert config is not None and config["hidden_size"] == 4096


@pytest.mark.parametrize("name", ["Qwen/Qwen3-9B", "mystery", "", "Qwen3-8B-vision"])
def test_a_model_that_only_resembles_a_known_one_is_not_taken_for_it(name: str) -> None:
    assert known_config(name) is None


def test_a_layer_divided_over_tensor_ranks_adds_up_to_the_whole() -> None:
    shape, _ = shape_from_config(KNOWN_MODELS["qwen3-8b"])
    whole, part = layer_count(shape, 0), layer_count(shape, 0, 4)
    assert part.split * 4 == whole.split
    assert part.whole == whole.whole
    assert sum(whole.tensors) == whole.total


def test_tensors_of_experts_add_up_to_the_experts() -> None:
    shape, _ = shape_from_config(KNOWN_MODELS["qwen3-30b-a3b"])
    layer = layer_count(shape, 0, tp=2, ep=8)
    assert sum(layer.expert_tensors) == layer.experts
    assert layer.experts * 8 == layer_count(shape, 0).experts


def test_config_json_of_a_local_folder_is_taken_before_the_table(tmp_path: Path) -> None:
    config = {**KNOWN_MODELS["qwen3-8b"], "num_hidden_layers": 2}
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    _, shape = find_shape(parse_flags(["--model", "Qwen3-8B"], {}, tmp_path), [])
    assert shape.layers == 2


def test_the_hugging_face_cache_is_read_without_a_network(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--acme--Rocket-7B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(KNOWN_MODELS["llama-3-8b"]))
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    config, where = read_config("acme/Rocket-7B", {"HF_HOME": str(tmp_path), "HOME": "/nonexistent"})
    assert config is not None and config["num_hidden_layers"] == 32
    assert "snapshots/abc" in where


def test_the_modelscope_cache_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "acme" / "Rocket-2___5"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(KNOWN_MODELS["llama-3-8b"]))
    config, _ = read_config("acme/Rocket-2.5", {"MODELSCOPE_CACHE": str(tmp_path), "HOME": "/nonexistent"})
    assert config is not None


def test_an_unknown_model_is_an_error_that_says_what_to_pass() -> None:
    with pytest.raises(CommandError, match="'acme/Rocket' is not known") as caught:
        find_shape(parse_flags(["--model", "acme/Rocket"], {"HOME": "/nonexistent"}), [])
    assert caught.value.exit_code == 2
    assert "config.json" in caught.value.hint and "qwen3-30b-a3b" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_experts": 10**9, "moe_intermediate_size": 8}, "num_experts is 1000000000"),
        ({"num_key_value_heads": 64}, "num_key_value_heads 64 is more than"),
        ({"model_type": "mamba2"}, "not a decoder"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        shape_from_config({**KNOWN_MODELS["qwen3-8b"], **change})


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff", "[" * 50_000])
def test_a_damaged_config_json_is_an_error_that_names_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CommandError, match=r"config\.json"):
        read_config(str(tmp_path), {})


def test_an_unknown_architecture_of_the_usual_form_is_read_and_said() -> None:
    shape, notes = shape_from_config({**KNOWN_MODELS["llama-3-8b"], "model_type": "rocket"})
    assert count(shape) == TOTALS["llama-3-8b"]
    assert "rocket" in notes[0]


def test_the_text_part_of_a_vision_model_is_counted_and_said() -> None:
    shape, notes = shape_from_config({"model_type": "qwen3_vl", "text_config": KNOWN_MODELS["qwen3-8b"]})
    assert count(shape) == TOTALS["qwen3-8b"]
    assert "vision" in notes[0]
