"""Measures what the estimate was never held to: the Hugging Face path on one GPU, all parameters and LoRA.

    python3 -m tests.labs.memory --out measured.json

Needs torch and transformers (peft for LoRA) and nothing of a network: the models have random weights. Three shapes, four
steps each, some minutes on one H100 of 80 GB. `--small` runs tiny models, on a CPU where there is no GPU, to see that it
works. Each row has the memory that PyTorch allocated and reserved at its peak, what the GPU had in use, seconds a step,
and diag's estimate of the same `swift sft` command.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from diag.knowledge import peak_of
from diag.preflight.estimate import estimate
from diag.preflight.estimate.speed import token_flops
from diag.preflight.estimate.states import state_terms

GIB = 1 << 30
_STEPS, _WARM = 4, 2
_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)
SHAPES: dict[str, dict[str, Any]] = {
    # about 0.5 B and 3 B parameters, a vocabulary as Qwen's
    "full": {
        "sizes": (1024, 24, 16, 8, 4096),
        "vocabulary": 151_936,
        "length": 4096,
        "batch": 2,
        "tuner": "full",
    },
    "lora": {
        "sizes": (2048, 36, 16, 2, 11008),
        "vocabulary": 151_936,
        "length": 8192,
        "batch": 1,
        "tuner": "lora",
    },
    # layers of Qwen3-30B-A3B; with so small a vocabulary a layer's backward is the peak
    "experts": {
        "sizes": (2048, 6, 32, 4, 6144),
        "vocabulary": 1024,
        "length": 8192,
        "batch": 1,
        "tuner": "full",
        "experts": {
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "head_dim": 128,
        },
    },
}
_SMALL = {"sizes": (64, 2, 4, 2, 128), "vocabulary": 1000, "length": 64}


def measure(name: str, shape: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    config: dict[str, Any] = dict(zip(_SIZES, shape["sizes"], strict=True))
    config |= {
        "vocab_size": shape["vocabulary"],
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    config |= shape.get("experts", {})
    family = "Qwen3Moe" if "experts" in shape else "Qwen2"
    made = getattr(transformers, f"{family}Config")(**config, attn_implementation="sdpa")
    model: Any = getattr(transformers, f"{family}ForCausalLM")(made).to(device, torch.bfloat16)
    if shape["tuner"] == "lora":
        import peft

        model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=32, target_modules="all-linear"))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    tokens = torch.randint(0, shape["vocabulary"], (shape["batch"], shape["length"]), device=device)
    seconds = []
    for _ in range(_STEPS):
        began = time.monotonic()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.monotonic() - began)
    row: dict[str, Any] = {
        "name": name,
        "parameters": sum(each.numel() for each in model.parameters()),
        "trained": sum(each.numel() for each in trained),
        "step_seconds": sorted(seconds[_WARM:])[0],
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info()
        row |= {
            "gpu": torch.cuda.get_device_name(),
            "allocated_between_steps": torch.cuda.memory_allocated(),
            "allocated_peak": torch.cuda.max_memory_allocated(),
            "reserved_peak": torch.cuda.max_memory_reserved(),
            "device_used": whole - free,
        }
    return row | estimated(config, shape, row)


def estimated(config: dict[str, Any], shape: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    kind = "qwen3_moe" if "experts" in shape else "qwen2"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({"model_type": kind, **config}))
        words = f"swift sft --model {folder} --tuner_type {shape['tuner']} --max_length {shape['length']} --lora_rank 8"
        words += f" --per_device_train_batch_size {shape['batch']} --gradient_accumulation_steps 1"
        found = estimate(words.split(), {"NPROC_PER_NODE": "1"})
    outside = ("CUDA context", "loaded kernels", "cuBLAS workspaces")
    terms = {term.name: term.size_bytes for term in found.needs[0].terms}
    at_rest = sum(term.size_bytes for term in state_terms(found.plan, 0) if term.name != "gradients")
    inside = found.gpu_bytes - sum(terms.get(each, 0) for each in outside)
    flops = token_flops(found.plan) * shape["batch"] * shape["length"] / row["step_seconds"]
    peak = peak_of(row.get("gpu", ""))
    return {
        "command": words,
        "terms": terms,
        "estimate": {
            "allocated_between_steps": at_rest,
            "allocated_peak": inside - terms.get("allocator", 0),
            "reserved_peak": inside,
            "device_used": found.gpu_bytes,
        },
        "mfu": None if peak is None else round(flops / peak / 1e12, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, shape in SHAPES.items():
        try:
            rows.append(measure(name, {**shape, **(_SMALL if options.small else {})}))
        except Exception as error:  # a shape that cannot be measured leaves the others
            rows.append({"name": name, "error": f"{type(error).__name__}: {error}"[:500]})
        _release()
        _show(rows[-1])
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))
    return 1 if any("error" in row for row in rows) else 0


def _release() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _show(row: dict[str, Any]) -> None:
    print(
        f"{row['name']}: "
        + (
            row.get("error")
            or f"{row['parameters']:,} parameters, {row['step_seconds']:.3f} s a step, MFU {row['mfu']}"
        )
    )
    for name, guess in row.get("estimate", {}).items():
        if name in row:
            print(
                f"  {name:<26}{row[name] / GIB:8.2f} GiB measured {guess / GIB:8.2f} estimated ({guess / row[name] - 1:+.1%})"
            )


if __name__ == "__main__":
    sys.exit(main())
