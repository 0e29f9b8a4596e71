"""What the jobs train on: the bundled job's MoE model and pairs, a dense model beside it, and a GPT-2 without
a pad token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from diag_job import assets as bundled

__all__ = ["edit_config", "make", "pairs", "texts", "write_rows"]


def make(folder: Path) -> None:
    """Nothing is downloaded; a second call finds its stamp and returns."""
    stamp = folder / "lab-stamp"
    if stamp.exists():
        return
    bundled.make(folder)
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": bundled.VOCABULARY}
    dense = Qwen3ForCausalLM(
        Qwen3Config(
            **sizes,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
    )
    _save(dense, folder, "qwen3-tiny")
    _save(
        GPT2LMHeadModel(GPT2Config(**sizes, n_positions=128, n_embd=64, n_layer=2, n_head=4)),
        folder,
        "gpt2-tiny",
    )
    tokenizer = folder / "gpt2-tiny" / "tokenizer_config.json"
    config = json.loads(tokenizer.read_text())
    config.pop("pad_token")
    tokenizer.write_text(json.dumps(config, indent=2))
    wide = folder / "wide"
    narrow, bundled.HIDDEN = bundled.HIDDEN, 128
    try:
        bundled.make(wide)
    finally:
        bundled.HIDDEN = narrow
    (wide / bundled.MODEL_NAME).rename(folder / "qwen3-moe-wide")
    stamp.touch()


def _save(model: object, folder: Path, name: str) -> None:
    model.save_pretrained(folder / name)  # type: ignore[attr-defined]
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / bundled.MODEL_NAME / file, folder / name)


def pairs(count: int = 64) -> list[dict[str, object]]:
    """Rows as ms-swift wants them for DPO."""
    return [
        {
            "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": chosen}],
            "rejected_response": rejected,
        }
        for prompt, chosen, rejected in bundled.pairs(count)
    ]


def texts(count: int = 64) -> list[dict[str, object]]:
    """Rows as a plain language model wants them."""
    return [{"text": f"{prompt} {chosen}"} for prompt, chosen, _ in bundled.pairs(count)]


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_config(source: Path, target: Path, **changed: object) -> None:
    """A copy of a model folder with other values in its config.json."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changed}, indent=2))
