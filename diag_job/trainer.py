"""DPO of a tiny Qwen3-MoE on megatron-core: policy and reference in one forward pass, any of TP, PP, EP and
DP.

What it prints are ms-swift 4's lines, on the streams and from the ranks where ms-swift prints them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import device

device.install()
# Every rank would say a dozen times that TransformerEngine and Apex are missing and what is deprecated.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import dist_checkpointing, tensor_parallel  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from . import assets  # noqa: E402

BETA, LEARNING_RATE, TOKENS = 0.1, 1e-4, 32
_SHARDING = {
    "distrib_optim_sharding_type": "dp_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Preference pairs as (tokens, labels), chosen then rejected, a token a word: enough to learn from."""

    def __init__(self) -> None:
        self.rows = list(assets.pairs())
        words = sorted({word for row in self.rows for text in row for word in text.split()})
        self.ids = {word: i for i, word in enumerate(words, 2)}  # 0 pads, 1 ends

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        prompt, *answers = ([self.ids[word] for word in text.split()] for text in self.rows[index])
        tokens = torch.zeros(2, TOKENS, dtype=torch.long)
        labels = torch.full((2, TOKENS), -100)
        for i, answer in enumerate(answers):
            text = [*prompt, *answer, 1]
            tokens[i, : len(text) - 1] = torch.tensor(text[:-1])
            labels[i, len(prompt) - 1 : len(text) - 1] = torch.tensor(text[len(prompt) :])
        return tokens, labels


def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """All chosen answers, then all rejected ones, as one batch."""
    tokens, labels = (torch.stack(column, dim=1).flatten(0, 1) for column in zip(*rows, strict=True))
    return tokens, labels


def batches(options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless; the line is printed when an epoch's first batch is asked for, before the workers exist."""
    dataset = Pairs()
    sampler: torch.utils.data.DistributedSampler[Any] = torch.utils.data.DistributedSampler(
        dataset, mpu.get_data_parallel_world_size(), mpu.get_data_parallel_rank(), drop_last=True
    )
    loader = torch.utils.data.DataLoader(
        dataset,
        options.micro_batch_size,
        sampler=sampler,
        collate_fn=collate,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    epoch = 0
    while True:
        info(f"The training of Epoch {epoch} starts...")
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def info(message: str) -> None:
    if dist.get_rank() == 0:
        print(f"[INFO:swift] {message}", file=sys.stderr, flush=True)


def model_config(options: argparse.Namespace) -> TransformerConfig:
    return TransformerConfig(
        num_layers=assets.LAYERS,
        hidden_size=assets.HIDDEN,
        num_attention_heads=assets.HEADS,
        num_query_groups=assets.KV_HEADS,
        kv_channels=assets.HEAD_DIM,
        ffn_hidden_size=2 * assets.HIDDEN,
        num_moe_experts=assets.EXPERTS,
        moe_ffn_hidden_size=assets.HIDDEN,
        moe_router_topk=2,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=1e-3,
        moe_token_dispatcher_type="alltoall",
        normalization="RMSNorm",
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        expert_model_parallel_size=options.ep,
        expert_tensor_parallel_size=1,  # gloo has no uneven all_gather, which ETP needs; ms-swift's default too
        sequence_parallel=options.tp > 1,  # Megatron refuses MoE with TP without it
        use_cpu_initialization=True,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=True,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        bias_dropout_fusion=False,
    )


def build_model(config: TransformerConfig) -> GPTModel:
    spec = get_gpt_layer_local_spec(
        num_experts=assets.EXPERTS, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=assets.VOCABULARY,
        max_sequence_length=TOKENS,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )


def dpo_loss(
    labels: torch.Tensor, token_losses: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sigmoid DPO loss of the per-token losses of reference and policy, stacked in this order."""
    answer = labels != -100
    half = labels.shape[0] // 2
    reference, policy = (-(part * answer).sum(-1) for part in token_losses.chunk(2))
    chosen, rejected = ((BETA * (policy - reference.detach()))[i : i + half] for i in (0, half))
    loss = -F.logsigmoid(chosen - rejected).mean()
    names = (
        "loss logps/chosen logps/rejected rewards/chosen rewards/rejected rewards/accuracies rewards/margins"
    )
    values = torch.stack(
        [
            loss,
            policy[:half].mean(),
            policy[half:].mean(),
            chosen.mean(),
            rejected.mean(),
            (chosen > rejected).float().mean(),
            (chosen - rejected).mean(),
        ]
    ).detach()
    dist.all_reduce(values, op=dist.ReduceOp.SUM, group=mpu.get_data_parallel_group())
    return loss, dict(zip(names.split(), values / mpu.get_data_parallel_world_size(), strict=True))


class Trainer:
    """One rank of the job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.iteration = options, 0
        self.config = model_config(options)
        self.reference, self.policy = build_model(self.config), build_model(self.config)
        self.reference.load_state_dict(self.policy.state_dict(), strict=False)
        self.reference.requires_grad_(False).eval()
        self.model = DistributedDataParallel(self.config, DistributedDataParallelConfig(), self.policy)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=LEARNING_RATE, params_dtype=torch.float32, clip_grad=1.0),
            [self.model],
        )
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.positions = torch.arange(TOKENS)[None]
        self.hide_future = ~torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
        self.last_rank = dist.get_rank() == dist.get_world_size() - 1

    def forward_step(self, data: Any, model: Any) -> tuple[torch.Tensor, Any]:
        """Reference and policy side by side: one tensor goes to the next pipeline stage for both."""
        tokens, labels = next(data)
        last = mpu.is_pipeline_last_stage()
        if not mpu.is_pipeline_first_stage():
            received = self.policy.decoder.input_tensor.chunk(2, dim=1)
            self.reference.set_input_tensor(received[0].detach())
            self.policy.set_input_tensor(received[1])
        inputs = {
            "input_ids": tokens,
            "position_ids": self.positions.expand(len(tokens), -1),
            "attention_mask": self.hide_future,
            "labels": labels.clamp(min=0) if last else None,
        }
        with torch.no_grad():
            reference = self.reference(**inputs)
        # Losses are (batch, tokens), hidden states (tokens, batch, hidden).
        return torch.cat([reference, model(**inputs)], dim=0 if last else 1), partial(dpo_loss, labels)

    def train_step(self, data: Any) -> dict[str, float]:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        size, data_parallel = self.options.micro_batch_size, mpu.get_data_parallel_world_size()
        losses = get_forward_backward_func()(
            forward_step_func=self.forward_step,
            data_iterator=data,
            model=[self.model],
            num_microbatches=self.options.global_batch_size // (size * data_parallel),
            seq_length=TOKENS,
            micro_batch_size=4 * size,  # chosen and rejected, reference and policy
            forward_only=False,
        )
        _, grad_norm, _ = self.optimizer.step()
        self.iteration += 1
        metrics = {
            name: float(sum(part[name] for part in losses)) / len(losses)
            for name in (losses[0] if losses else ())
        }
        return {**metrics, "grad_norm": float(grad_norm), "learning_rate": LEARNING_RATE}

    def save(self) -> None:
        folder: Path = self.options.output_dir / f"checkpoint-{self.iteration}"
        shards = folder / f"iter_{self.iteration:07d}"
        shards.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        model = self.policy.sharded_state_dict(metadata=_SHARDING)
        optimizer = self.optimizer.sharded_state_dict(model, metadata=_SHARDING)
        state = {"model": model, "optimizer": optimizer, "iteration": self.iteration}
        dist_checkpointing.save(state, str(shards), content_metadata=_SHARDING)
        dist.barrier()
        if dist.get_rank() == 0:
            (folder / "latest_checkpointed_iteration.txt").write_text(str(self.iteration))
        info(f"Successfully saved Megatron model weights in `{folder}`.")

    def load(self, folder: Path) -> None:
        """Go on from one of `save`: its weights, and unless they are all that is wanted the optimizer and the step."""
        step = int((folder / "latest_checkpointed_iteration.txt").read_text())
        model = self.policy.sharded_state_dict(metadata=_SHARDING)
        wanted: dict[str, Any] = {"model": model}
        if self.options.finetune == "false":
            wanted["optimizer"] = self.optimizer.sharded_state_dict(
                model, is_loading=True, metadata=_SHARDING
            )
        state = dist_checkpointing.load(wanted, str(folder / f"iter_{step:07d}"))
        self.policy.load_state_dict(state["model"])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
            self.iteration = step
        info(f"Successfully loaded Megatron model weights from `{folder}`.")

    def train(self) -> None:
        options, data, started = self.options, batches(self.options), time.monotonic()
        for i in range(self.iteration + 1, options.iters + 1):
            step_started = time.monotonic()
            metrics = self.train_step(data)
            time.sleep(max(0.0, step_started + options.step_seconds - time.monotonic()))
            if self.last_rank:
                self.log(metrics, time.monotonic() - started)
            if options.save_steps and i % options.save_steps == 0:
                self.save()

    def log(self, metrics: dict[str, float], elapsed: float) -> None:
        speed = elapsed / self.iteration
        line = {name: round(value, 8) for name, value in metrics.items()} | {
            "iteration": f"{self.iteration}/{self.options.iters}",
            "elapsed_time": f"{elapsed:.0f}s",
            "remaining_time": f"{(self.options.iters - self.iteration) * speed:.0f}s",
            "memory(GiB)": 0.0,
            "train_speed(s/it)": round(speed, 6),
        }
        print(line, flush=True)
        if self.options.output_dir is not None:
            self.options.output_dir.mkdir(parents=True, exist_ok=True)
            with open(self.options.output_dir / "logging.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        expert_model_parallel_size=options.ep,
        expert_tensor_parallel_size=1,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    info(
        f"rank: 0, local_rank: 0, world_size: {dist.get_world_size()}, local_world_size: {os.environ['LOCAL_WORLD_SIZE']}"
    )
    info(f"TP: {options.tp}, PP: {options.pp}, VPP: None, CP: 1, EP: {options.ep}, ETP: 1")
    info(f"Start time of running main: {datetime.datetime.now()}")
    trainer = Trainer(options)
    if options.mcore_model is not None:
        trainer.load(options.mcore_model)
    trainer.train()
    info(f"End time of running main: {datetime.datetime.now()}")
    dist.barrier()
    dist.destroy_process_group()
