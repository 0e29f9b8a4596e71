"""What of the software CMD is known to use: only that is a problem where it is broken, the rest is a note."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diag.preflight.line import table
from diag.preflight.software.target import Target


def is_megatron(target: Target) -> bool:
    """`megatron` of ms-swift, or a script of Megatron-LM."""
    return target.launcher == "megatron" or "megatron" in (target.imports or ())


def used_by(target: Target) -> frozenset[str] | None:
    """Names of distributions; None where nothing is known of what CMD uses."""
    with_rlhf = "rlhf" in target.words
    used: set[str] = set()
    if target.launcher == "megatron":
        used = {*_uses("swift"), *_uses("megatron"), "mcore-bridge"} - (set() if with_rlhf else {"trl"})
    elif target.launcher == "swift":
        used = set(_uses("swift"))
    elif target.imports:
        used = {name for module in target.imports if "." not in module for name in _uses(module)}
    if with_rlhf and target.launcher in ("megatron", "swift"):
        used.add("msgspec")
    if target.launcher == "deepspeed" or target.has("--deepspeed", "--deepspeed_config") is not None:
        used.update(_uses("deepspeed"))
    if target.launcher == "accelerate":
        used.update(_uses("accelerate"))
    if target.has("--use_vllm") in ("true", "True", "1"):
        used.add("vllm")
    if target.launcher == "torchrun":
        used.add("torch")
    return frozenset(used) if used - {"torch"} else None


def _uses(module: str) -> Iterator[str]:
    return _flat(table("versions")["uses"].get(module, module.replace("_", "-")))


def _flat(names: Any) -> Iterator[str]:
    if isinstance(names, str):
        yield names
    else:
        for name in names:
            yield from _flat(name)
