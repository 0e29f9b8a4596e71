"""Models whose config.json is known without having it, by the name people pass: the numbers of their public
config.json.

Only what `shape_from_config` reads is kept. A test holds each to the parameter total that its model card or
safetensors index tells.
"""

from __future__ import annotations

import re
from typing import Any


def _qwen3(hidden: int, layers: int, heads: int, ffn: int, *, tied: bool = False) -> dict[str, Any]:
    return {"model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": ffn, "vocab_size": 151936,
            "tie_word_embeddings": tied, "max_position_embeddings": 40960}  # fmt: skip


def _qwen3_moe(hidden: int, layers: int, heads: int, ffn: int, moe_ffn: int) -> dict[str, Any]:
    return {"model_type": "qwen3_moe", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": ffn, "moe_intermediate_size": moe_ffn,
            "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
            "max_position_embeddings": 40960}  # fmt: skip


def _qwen25(
    hidden: int, layers: int, heads: int, kv: int, ffn: int, *, vocab: int = 152064, tied: bool = False
) -> dict[str, Any]:
    return {"model_type": "qwen2", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab, "tie_word_embeddings": tied,
            "max_position_embeddings": 32768}  # fmt: skip


def _llama3(
    hidden: int,
    layers: int,
    heads: int,
    ffn: int,
    *,
    tied: bool = False,
    head_dim: int = 128,
    positions: int = 131072,
) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 8, "head_dim": head_dim, "intermediate_size": ffn, "vocab_size": 128256,
            "tie_word_embeddings": tied, "max_position_embeddings": positions}  # fmt: skip


KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288),
    "qwen3-14b": _qwen3(5120, 40, 40, 17408),
    "qwen3-32b": _qwen3(5120, 64, 64, 25600),
    "qwen3-30b-a3b": _qwen3_moe(2048, 48, 32, 6144, 768),
    "qwen3-235b-a22b": _qwen3_moe(4096, 94, 64, 12288, 1536),
    "qwen2.5-0.5b": _qwen25(896, 24, 14, 2, 4864, vocab=151936, tied=True),
    "qwen2.5-1.5b": _qwen25(1536, 28, 12, 2, 8960, vocab=151936, tied=True),
    "qwen2.5-3b": _qwen25(2048, 36, 16, 2, 11008, vocab=151936, tied=True),
    "qwen2.5-7b": _qwen25(3584, 28, 28, 4, 18944),
    "qwen2.5-14b": _qwen25(5120, 48, 40, 8, 13824),
    "qwen2.5-32b": _qwen25(5120, 64, 40, 8, 27648),
    "qwen2.5-72b": _qwen25(8192, 80, 64, 8, 29568),
    "llama-3-8b": _llama3(4096, 32, 32, 14336, positions=8192),
    "llama-3-70b": _llama3(8192, 80, 64, 28672, positions=8192),
    "llama-3.1-8b": _llama3(4096, 32, 32, 14336),
    "llama-3.1-70b": _llama3(8192, 80, 64, 28672),
    "llama-3.1-405b": _llama3(16384, 126, 128, 53248),
    "llama-3.2-1b": _llama3(2048, 16, 32, 8192, tied=True, head_dim=64),
    "llama-3.2-3b": _llama3(3072, 28, 24, 8192, tied=True),
    "llama-3.3-70b": _llama3(8192, 80, 64, 28672),
}

# What people's names have beside the size: "Qwen/Qwen3-30B-A3B-Instruct-2507",
# "meta-llama/Meta-Llama-3.1-8B-Instruct".
_TAIL = re.compile(
    r"-(instruct|base|chat|thinking|coder|math|it|hf|bf16|fp8|awq|gptq|int[48]|2507|1m)(?=-|$)"
)


def known_config(name: str) -> dict[str, Any] | None:
    """The configuration of a model named as on a hub; None for others.

    >>> known_config("Qwen/Qwen3-30B-A3B-Instruct-2507")["num_experts"]
    128
    >>> known_config("meta-llama/Meta-Llama-3.1-8B")["hidden_size"], known_config("Qwen3-9000B")
    (4096, None)
    """
    word = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    word = (
        word.replace("qwen2.5-coder", "qwen2.5")
        .replace("qwen2.5-math", "qwen2.5")
        .replace("qwen3-coder", "qwen3")
    )
    while (shorter := _TAIL.sub("", word)) != word:
        word = shorter
    return KNOWN_MODELS.get(word)
