import json
from pathlib import Path

import pytest

from diag_job import assets


def test_assets_are_made_once_and_are_the_same_in_another_folder(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")

    first = assets.make(tmp_path / "a")
    written = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assets.make(first)
    second = assets.make(tmp_path / "b")

    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == written
    for path in first.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()


def test_both_sizes_of_the_model_have_one_tokenizer_and_the_weights_of_their_configuration(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tokenizers")
    numpy = pytest.importorskip("safetensors.numpy")

    for name, size in assets.SIZES.items():
        model = assets.make(tmp_path, name) / assets.model_name(name)
        config = json.loads((model / "config.json").read_text())
        weights = numpy.load_file(model / "model.safetensors")

        assert weights["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
        assert weights[f"model.layers.{config['num_hidden_layers'] - 1}.self_attn.k_proj.weight"].shape == (
            config["num_key_value_heads"] * config["head_dim"],
            config["hidden_size"],
        )
        last = f"model.layers.0.mlp.experts.{config['num_experts'] - 1}.down_proj.weight"
        assert (
            weights[last].shape
            == (size.hidden, size.expert_width)
            == (config["hidden_size"], config["moe_intermediate_size"])
        )
    assert assets.model_name() == assets.MODEL_NAME
    assert (
        len({(tmp_path / assets.model_name(name) / "tokenizer.json").read_bytes() for name in assets.SIZES})
        == 1
    )


def test_an_interrupted_folder_is_completed(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    (tmp_path / "pairs.jsonl").write_text('{"mess')

    assets.make(tmp_path)

    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(rows) == 512


def test_pairs_differ_in_the_answer_only() -> None:
    rows = list(assets.pairs())

    assert len(rows) == 512
    assert all(prompt == f"Repeat exactly: {chosen}" for prompt, chosen, _ in rows)
    assert sum(chosen == rejected for _, chosen, rejected in rows) <= 1
