"""What of the software CMD is known to use: only that is a problem where it is broken, the rest is a note."""

from __future__ import annotations

from collections.abc import Mapping

from diag.preflight.software.facts import Software
from diag.preflight.software.target import Target

_TRANSFORMERS = frozenset(
    [
        "transformers",
        "torch",
        "numpy",
        "tokenizers",
        "huggingface-hub",
        "safetensors",
        "flash-attn",
        "torchvision",
    ]
)
_SWIFT = _TRANSFORMERS | {
    "ms-swift",
    "peft",
    "accelerate",
    "datasets",
    "trl",
    "modelscope",
    "pandas",
    "pyarrow",
    "triton",
}
_MEGATRON = frozenset(
    ["torch", "numpy", "megatron-core", "transformer-engine", "flash-attn", "triton", "apex"]
)
# What a script that imports the module also uses, as far as it breaks at import. A module that is not here is
# its own package.
_BY_MODULE: Mapping[str, frozenset[str]] = {
    "torch": frozenset(["torch", "numpy"]),
    "transformers": _TRANSFORMERS,
    "trl": _TRANSFORMERS | {"trl", "accelerate", "datasets", "pandas", "pyarrow"},
    "peft": _TRANSFORMERS | {"peft", "accelerate"},
    "accelerate": frozenset(["accelerate", "torch", "numpy", "safetensors", "huggingface-hub"]),
    "datasets": frozenset(["datasets", "numpy", "pandas", "pyarrow", "huggingface-hub"]),
    "deepspeed": frozenset(["deepspeed", "torch", "numpy", "triton"]),
    "swift": _SWIFT,
    "megatron": _MEGATRON,
    "pretrain_gpt": _MEGATRON,
    "transformer_engine": frozenset(["transformer-engine", "torch", "flash-attn"]),
    "flash_attn": frozenset(["flash-attn", "torch"]),
    "vllm": _TRANSFORMERS | {"vllm", "triton"},
    "lightning": frozenset(["torch", "numpy"]),
}


def is_megatron(target: Target) -> bool:
    """`megatron` of ms-swift, or a script of Megatron-LM."""
    return target.launcher == "megatron" or "megatron" in (target.imports or ())


def used_by(target: Target, software: Software) -> frozenset[str] | None:
    """Names of distributions; None where nothing is known of what CMD uses."""
    words = set(target.words)
    used: set[str] = set()
    if target.launcher == "megatron":
        used |= _SWIFT | _MEGATRON | {"mcore-bridge"}
        if "rlhf" in words:
            used.add("msgspec")
        used -= {"trl"} if "rlhf" not in words else set()
    elif target.launcher == "swift":
        used |= _SWIFT | ({"msgspec"} if "rlhf" in words else set())
    elif target.imports:
        for module in (name for name in target.imports if "." not in name):
            used |= _BY_MODULE.get(module, frozenset([module.replace("_", "-")]))
    if target.launcher == "deepspeed" or target.has("--deepspeed", "--deepspeed_config") is not None:
        used |= _BY_MODULE["deepspeed"]
    if target.launcher == "accelerate":
        used |= _BY_MODULE["accelerate"]
    if target.has("--use_vllm") in ("true", "True", "1"):
        used.add("vllm")
    if target.launcher == "torchrun":
        used.add("torch")
    return frozenset(used) if used - {"torch"} else None
