"""A few steps with DeepSpeed on a CPU; the argument says what is wrong with the configuration or the program."""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

HALF = {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}
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
    "offload-param": {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
    "device": {"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}},
    "type": {"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "5e7 bytes"}},
    "save": {"zero_optimization": {"stage": 1}},
    "resume-world": {"zero_optimization": {"stage": 1}},
    "resume-tag": {"zero_optimization": {"stage": 1}},
    "lora": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    "lora-late": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    "outside": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    "overflow": {"fp16": {**HALF}, "zero_optimization": {"stage": 2}},
    "scale-found": {"fp16": {**HALF, "initial_scale_power": 24}, "zero_optimization": {"stage": 2}},
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

    small = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
    )
    if dist.get_rank() == 0:
        LlamaForCausalLM(small).save_pretrained("model")
    dist.barrier()
    kept = HfDeepSpeedConfig(config)
    LlamaForCausalLM.from_pretrained("model", low_cpu_mem_usage=True, device_map="cpu")
    print(kept)


def adapted(model: Net, case: str) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model

    tuned: torch.nn.Module = get_peft_model(model, LoraConfig(r=4, target_modules=["up", "down"]))  # type: ignore[arg-type]
    if case == "lora-late" and dist.get_rank() == 0:
        tuned.save_pretrained("adapter")  # type: ignore[operator]
    dist.barrier()
    return tuned


def resume(engine: Any, case: str) -> None:
    """Load a checkpoint of an earlier job, as a training loop does that must not begin anew."""
    path, _ = engine.load_checkpoint("ckpt", tag="global_step500" if case == "resume-tag" else None)
    if path is None:
        raise RuntimeError("no checkpoint was loaded from ckpt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--local_rank", type=int, default=0)
    case = parser.parse_args().case
    config = {key: value for key, value in {**BASE, **CONFIGS.get(case, {})}.items() if value is not None}
    deepspeed.init_distributed(dist_backend="gloo")
    if case == "json":
        # a comma too many is none to DeepSpeed, which reads Hjson
        Path("ds_config.json").write_text(json.dumps(config)[:-12])
        config = "ds_config.json"  # type: ignore[assignment]
    elif case == "no-file":
        config = "ds_z3.json"  # type: ignore[assignment]
    elif case in {"low-cpu-mem", "key"}:
        config["zero_optimization"] = {"stage": 3} if case == "low-cpu-mem" else {"stage": 1}
    if case == "low-cpu-mem":
        hugging_face(config)
    if case in {"overflow", "scale-found"}:
        # torch can, if slowly; DeepSpeed asks for oneDNN's fp16
        get_accelerator().is_fp16_supported = lambda: True
    if case == "outside":
        with deepspeed.zero.Init(config_dict_or_path=config):
            model: torch.nn.Module = Net()
    else:
        model = Net()
    if case.startswith("lora"):
        model = adapted(model, case)  # type: ignore[arg-type]
    optimizer = None if case in {"adam", "fused"} else torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=optimizer, config=config
    )
    if case in {"resume-world", "resume-tag", "resume-nothing"}:
        resume(engine, case)
    if case == "lora-late":
        engine.module.load_adapter("adapter", "second")
    if case == "outside":
        print((torch.ones(2, 8) @ engine.module.up.weight.T).shape)
    half = case in {"overflow", "scale-found"}
    for step in range(12 if half else 4):
        loss = engine(torch.ones(2, 8, dtype=torch.half if half else torch.float))
        engine.backward(loss * float("inf") if case == "overflow" and step > 3 else loss)
        if half and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f} loss scale {engine.optimizer.loss_scale}", flush=True)
        if case == "kill" and step == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        engine.step()
        if case == "key" and step == 2 and dist.get_rank() == 1:
            print({"input_ids": 0}["labels"])
    if case == "save":
        engine.save_checkpoint("ckpt")
    elif case == "resume":
        engine.save_checkpoint("ckpt")
        Path("ckpt/latest").write_text("global_step7")
        engine.load_checkpoint("ckpt")
    elif case == "resume-shape":
        engine.save_checkpoint("ckpt")
        wide = Net(16)
        other, *_ = deepspeed.initialize(
            model=wide,
            model_parameters=wide.parameters(),
            optimizer=torch.optim.AdamW(wide.parameters()),
            config=config,
        )
        other.load_checkpoint("ckpt")
    if dist.get_rank() == 0:
        print("training done", flush=True)


if __name__ == "__main__":
    main()
