"""What the inventory of CMD's Python has found, as facts; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# In the summary, and the packages whose own requirements are checked.
DISTS = (
    "torch", "triton", "flash-attn", "transformer-engine", "apex", "megatron-core", "mcore-bridge", "ms-swift", "transformers",
    "trl", "peft", "accelerate", "deepspeed", "datasets", "numpy", "vllm", "xformers", "torchvision", "torchaudio", "tokenizers",
    "huggingface-hub", "safetensors", "modelscope", "pandas", "pyarrow", "scipy", "msgspec",
)  # fmt: skip
MODULES = (
    "torch", "triton", "flash_attn", "transformer_engine", "apex", "amp_C", "fused_layer_norm_cuda", "deepspeed", "xformers",
    "vllm", "torchvision", "torchaudio", "mcore_bridge", "swift", "msgspec", "transformers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Software:
    """`installed` has every distribution by its normalised name; `modules` where each module of interest
    would come from."""

    python: str
    executable: str
    installed: Mapping[str, str]
    requires: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, str | None]
    markers: Mapping[str, str]
    torch_cuda: str | None = None
    is_rocm: bool = False
    megatron_core: str | None = None
    megatron_core_version: str = ""
    megatron_training: str | None = None
    swift_wants: str = ""  # the branch of Megatron-LM that ms-swift 3.x clones, "core_r0.15.0"
    swift_has_bridge: bool = False

    def version(self, name: str) -> str:
        return self.installed.get(name, "")

    def has(self, module: str) -> bool:
        return self.modules.get(module) is not None


def parse(answer: Mapping[str, Any]) -> Software:
    # torch 2.13.0+cpu, torch/version.py: `cuda: Optional[str] = None`; 2.11.0+cu130: `cuda: Optional[str] =
    # '13.0'`
    cuda = re.search(r"^cuda\b[^=\n]{0,40}= *'([\d.]+)'", answer["torch"], re.MULTILINE)
    hip = re.search(r"^hip\b[^=\n]{0,40}= *'", answer["torch"], re.MULTILINE)
    # ms-swift 3.12.6, swift/megatron/init.py: `'https://github.com/NVIDIA/Megatron-LM',
    # branch='core_r0.15.0')`
    branch = re.search(r"branch='(core_r[\d.]+)'", answer["swift_init"])
    # Megatron-LM, megatron/core/package_info.py: `MAJOR = 0`, `MINOR = 16`, `PATCH = 1`, `PRE_RELEASE = ''`
    numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH) = (\d+)", answer["megatron_core_info"], re.MULTILINE))
    return Software(
        python=answer["python"],
        executable=answer["executable"],
        installed=answer["installed"],
        requires={name: tuple(all_of) for name, all_of in answer["requires"].items()},
        modules=answer["modules"],
        markers=answer["markers"],
        torch_cuda=cuda[1] if cuda else None,
        is_rocm=hip is not None,
        megatron_core=answer["megatron_core"],
        megatron_core_version=".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
        if numbers
        else "",
        megatron_training=answer["megatron_training"],
        swift_wants=branch[1] if branch else "",
        swift_has_bridge="mcore_bridge" in answer["swift_init"],
    )
