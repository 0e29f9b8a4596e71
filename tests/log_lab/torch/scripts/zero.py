"""A few steps with DeepSpeed on a CPU; the argument says what is wrong with the configuration or the program."""

import argparse
import json
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 0},
    "steps_per_print": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "batch": {"train_batch_size": 32},
    "unknown-key": {"zero_optimization": {"stage": 3, "stage3_max_live_params": 1000000}},
    "stage": {"zero_optimization": {"stage": 4}},
    "auto": {"train_micro_batch_size_per_gpu": "auto"},
    "both": {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
    "adam": {"optimizer": {"type": "AdamW8", "params": {"lr": 1e-3}}},
    "fused": {"optimizer": {"type": "FusedLamb", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 2}},
    "offload": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "no-batch": {"train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": None},
}


class Net(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, width)
        self.down = torch.nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).mean()


def hugging_face(config: dict[str, Any]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    small = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
    if dist.get_rank() == 0:
        LlamaForCausalLM(small).save_pretrained("model")
    dist.barrier()
    kept = HfDeepSpeedConfig(config)
    LlamaForCausalLM.from_pretrained("model", low_cpu_mem_usage=True, device_map="cpu")
    print(kept)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--local_rank", type=int, default=0)
    case = parser.parse_args().case
    config = {key: value for key, value in {**BASE, **CONFIGS.get(case, {})}.items() if value is not None}
    deepspeed.init_distributed(dist_backend="gloo")
    if case == "json":
        Path("ds_config.json").write_text(json.dumps(config)[:-1] + ",}")
        config = "ds_config.json"  # type: ignore[assignment]
    elif case == "no-file":
        config = "ds_z3.json"  # type: ignore[assignment]
    elif case in {"low-cpu-mem", "key"}:
        config["zero_optimization"] = {"stage": 3} if case == "low-cpu-mem" else {"stage": 1}
    if case == "low-cpu-mem":
        hugging_face(config)
    model = Net()
    optimizer = None if case in {"adam", "fused"} else torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=optimizer, config=config)
    for step in range(4):
        loss = engine(torch.ones(2, 8))
        engine.backward(loss)
        engine.step()
        if case == "key" and step == 2 and dist.get_rank() == 1:
            print({"input_ids": 0}["labels"])
    if case == "resume":
        engine.save_checkpoint("ckpt")
        Path("ckpt/latest").write_text("global_step7")
        engine.load_checkpoint("ckpt")
    elif case == "resume-shape":
        engine.save_checkpoint("ckpt")
        wide = Net(16)
        other, *_ = deepspeed.initialize(
            model=wide, model_parameters=wide.parameters(), optimizer=torch.optim.AdamW(wide.parameters()), config=config
        )
        other.load_checkpoint("ckpt")
    if dist.get_rank() == 0:
        print("training done", flush=True)


if __name__ == "__main__":
    main()
