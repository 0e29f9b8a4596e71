"""What the bundled job trains on, made locally: a tiny random Qwen3-MoE, a BPE tokenizer, 512 preference
pairs.

`python -m diag_job.assets DIR` needs no network, no torch and no transformers; a second call finds its stamp
and returns. There are two sizes: `tiny` steps quickly on a CPU, `small` has the widths that GPU kernels are
used to (22 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Raise it when anything below changes what is written.
STAMP = "diag job assets 1\n"
MODEL_NAME = "qwen3-moe-tiny"

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, VOCABULARY = 64, 4, 4, 2, 16, 4, 512


@dataclass(frozen=True, slots=True)
class Size:
    """A model's widths; its tokenizer and the pairs are the same in all."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    expert_width: int
    vocabulary: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, HIDDEN, VOCABULARY),
    # Heads of 64 and rows of whole 128s: TransformerEngine and grouped GEMMs ran with them on an H200.
    "small": Size(256, 4, 8, 4, 64, 8, 128, 2048),
}

_ADJECTIVES = ["red", "blue", "green", "small", "large", "quick", "slow", "warm", "cold", "bright"]
_NOUNS = ["river", "stone", "bird", "tree", "cloud", "lamp", "road", "field", "ship", "window"]
_VERBS = ["holds", "crosses", "follows", "lights", "turns", "meets", "keeps", "opens"]
_SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def default_folder() -> Path:
    """Where assets are kept unless told otherwise: the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diag" / "job-assets"


def pairs(count: int = 512) -> Iterator[tuple[str, str, str]]:
    """(prompt, chosen, rejected): repeat a sentence, or say another one. The same every time."""
    rnd = random.Random(0)

    def sentence() -> str:
        a, n, v = rnd.choice(_ADJECTIVES), rnd.choice(_NOUNS), rnd.choice(_VERBS)
        return f"the {a} {n} {v} the {rnd.choice(_ADJECTIVES)} {rnd.choice(_NOUNS)}"

    for _ in range(count):
        chosen, rejected = sentence(), sentence()
        yield f"Repeat exactly: {chosen}", chosen, rejected


def model_name(size: str = "tiny") -> str:
    """The model's folder below that of the assets."""
    return f"qwen3-moe-{size}"


def make(folder: Path, size: str = "tiny") -> Path:
    """Write everything below `folder` unless it is there already; safe with several makers at a time."""
    model = folder / model_name(size)
    stamp = folder / ("stamp" if size == "tiny" else f"stamp-{size}")
    if stamp.is_file() and stamp.read_text() == STAMP:
        return folder
    model.mkdir(parents=True, exist_ok=True)
    _write(folder / "pairs.jsonl", "".join(json.dumps(row) + "\n" for row in _rows()))
    _write_tokenizer(model)
    _write_model(model, SIZES[size])
    _write(stamp, STAMP)
    return folder


def _rows() -> Iterator[dict[str, Any]]:
    for prompt, chosen, rejected in pairs():
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": chosen}]
        yield {"messages": messages, "rejected_response": rejected}


def _write(path: Path, text: str) -> None:
    # Renamed into place: a reader sees the whole file or none.
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.replace(path)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 12,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = (f"{prompt} {rejected}\nuser assistant system\n" for prompt, _, rejected in pairs())
    tokenizer.train_from_iterator(text, trainer)
    _write(folder / "tokenizer.json", tokenizer.to_str())
    config = {
        # This class reads tokenizer.json alone and has the same name in transformers 4 and 5.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": _SPECIAL_TOKENS[1:],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": _CHAT_TEMPLATE,
    }
    _write(folder / "tokenizer_config.json", json.dumps(config, indent=2))


def _write_model(folder: Path, size: Size) -> None:
    import numpy
    from safetensors.numpy import save_file

    rng = numpy.random.default_rng(0)
    weights: dict[str, Any] = {}

    def normal(name: str, *shape: int) -> None:
        weights[f"{name}.weight"] = (0.02 * rng.standard_normal(shape)).astype(numpy.float32)

    def ones(name: str, size: int) -> None:
        weights[f"{name}.weight"] = numpy.ones(size, numpy.float32)

    normal("model.embed_tokens", size.vocabulary, size.hidden)
    for i in range(size.layers):
        layer = f"model.layers.{i}"
        normal(f"{layer}.self_attn.q_proj", size.heads * size.head_dim, size.hidden)
        normal(f"{layer}.self_attn.k_proj", size.kv_heads * size.head_dim, size.hidden)
        normal(f"{layer}.self_attn.v_proj", size.kv_heads * size.head_dim, size.hidden)
        normal(f"{layer}.self_attn.o_proj", size.hidden, size.heads * size.head_dim)
        ones(f"{layer}.self_attn.q_norm", size.head_dim)
        ones(f"{layer}.self_attn.k_norm", size.head_dim)
        ones(f"{layer}.input_layernorm", size.hidden)
        ones(f"{layer}.post_attention_layernorm", size.hidden)
        normal(f"{layer}.mlp.gate", size.experts, size.hidden)
        for expert in range(size.experts):
            normal(f"{layer}.mlp.experts.{expert}.gate_proj", size.expert_width, size.hidden)
            normal(f"{layer}.mlp.experts.{expert}.up_proj", size.expert_width, size.hidden)
            normal(f"{layer}.mlp.experts.{expert}.down_proj", size.hidden, size.expert_width)
    ones("model.norm", size.hidden)
    normal("lm_head", size.vocabulary, size.hidden)
    scratch = folder / f"model.safetensors.{os.getpid()}"
    save_file(weights, scratch, metadata={"format": "pt"})
    scratch.chmod(0o644)  # safetensors writes 0600; a job under another user reads it as well
    scratch.replace(folder / "model.safetensors")
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        # float32 here makes ms-swift train in fp16, which overflows to NaN on a CPU.
        "torch_dtype": "bfloat16",
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "moe_intermediate_size": size.expert_width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "num_experts": size.experts,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "router_aux_loss_coef": 1e-3,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 512,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    _write(folder / "config.json", json.dumps(config, indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m diag_job.assets", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=default_folder(), metavar="DIR")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    options = parser.parse_args()
    try:
        print(make(options.folder, options.size))
    except ImportError as error:
        print(f"error: {error}\n\nhint: pip install tokenizers safetensors numpy", file=sys.stderr)
        return 1
    except OSError as error:
        hint = "name a folder that can (run.sh: ASSETS=DIR)"
        print(f"error: {options.folder} cannot be written: {error}\n\nhint: {hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
