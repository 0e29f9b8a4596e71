"""Healthy runs of `megatron`, what goes wrong in its checkpoints, and ranks that die."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from .act import Run, kill_data_worker, kill_rank
from .case import Case, Version, megatron, megatron_environment
from .running import STEPS, Prepare
from .trainer import FULL_DISK, NO_RIGHT, READ_ONLY

__all__ = ["megatron_checkpoint_cases", "megatron_healthy_cases"]


def megatron_healthy_cases(version: Version) -> list[Case]:
    """`megatron rlhf` and `megatron sft` with nothing wrong. megatron-healthy comes first: others load what
    it saved."""

    def case(
        name: str, why: str, ranks: int = 2, verb: str = "rlhf", terminal: bool = False, **flags: str | None
    ) -> Case:
        return Case(
            name, "none", why, megatron(verb, **flags), megatron_environment(ranks), terminal=terminal
        )

    return [
        case(
            "megatron-healthy",
            "EP2, two saves with optimizer",
            save_steps="2",
            save_safetensors="false",
            finetune="false",
        ),
        case("megatron-healthy-terminal", "on a terminal", terminal=True),
        case("megatron-healthy-async", "async_save", async_save="true", save_steps="2"),
        case("megatron-healthy-lora", "LoRA", tuner_type="lora", lora_rank="4"),
        case("megatron-healthy-sft", "sft", verb="sft"),
        case("megatron-healthy-packing", "sft with packing", verb="sft", packing="true"),
        case(
            "megatron-healthy-tp",
            "TP2 with sequence parallelism",
            tensor_model_parallel_size="2",
            sequence_parallel="true",
        ),
        case("megatron-healthy-pp", "PP2", pipeline_model_parallel_size="2", expert_model_parallel_size="1"),
        case(
            "megatron-healthy-eval",
            "evaluation every 2 iterations",
            split_dataset_ratio="0.05",
            eval_steps="2",
            eval_iters="1",
        ),
    ]


def _saved(damage: Callable[[Path], None]) -> Prepare:
    """A copy of what megatron-healthy saved, damaged in one way, as {work}/ckpt."""

    def prepare(work: Path, assets: Path) -> None:
        (run,) = (work.parent / "megatron-healthy" / "out").iterdir()
        shutil.copytree(run / "checkpoint-4", work / "ckpt")
        damage(work / "ckpt")

    return prepare


def _shard(folder: Path) -> Path:
    return max(folder.rglob("*.distcp"), key=lambda file: file.stat().st_size)


def _cut_shard(folder: Path) -> None:
    _shard(folder).write_bytes(_shard(folder).read_bytes()[:2000])


def _drop(pattern: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for file in folder.rglob(pattern):
            file.unlink()

    return damage


def _cut_file(pattern: str, keep: int = 100) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for file in folder.rglob(pattern):
            file.write_bytes(file.read_bytes()[:keep])

    return damage


def megatron_checkpoint_cases(version: Version) -> list[Case]:
    """Checkpoints of torch_dist, and ranks that die, under `megatron rlhf` 4.x."""
    environment = megatron_environment()

    def load(name: str, expect: str, why: str, damage: Callable[[Path], None], **flags: str | None) -> Case:
        given: dict[str, str | None] = {"mcore_model": "{work}/ckpt", "finetune": "false", **flags}
        ranks = 1 if name == "other-ep" else 2
        return Case(
            f"megatron-load-{name}",
            expect,
            why,
            megatron(**given),
            megatron_environment(ranks),
            _saved(damage),
        )

    def case(name: str, expect: str, why: str, wrap: tuple[str, ...] = (), **flags: str | None) -> Case:
        return Case(f"megatron-{name}", expect, why, megatron(**flags), environment, wrap=wrap)

    def acted(name: str, expect: str, why: str, act: Callable[[Run], None]) -> Case:
        return Case(
            f"megatron-{name}",
            expect,
            why,
            megatron(train_iters=STEPS, save_steps=STEPS),
            environment,
            act=act,
            ranks=(1,),
        )

    def nothing(folder: Path) -> None:
        return

    def fault(name: str, expect: str, why: str, spec: str) -> Case:
        return Case(
            f"megatron-{name}",
            expect,
            why,
            megatron(save_steps="2"),
            {**environment, "DIAG_FAULT": spec},
            ranks=(1,),
        )

    return [
        case(
            "load-missing", "checkpoint-missing", "mcore_model does not exist", mcore_model="{work}/missing"
        ),
        load(
            "other-ep",
            "checkpoint-args-mismatch",
            "an optimizer saved with expert_model_parallel_size 2, loaded on one rank with 1",
            nothing,
            expert_model_parallel_size="1",
        ),
        load("cut-shard", "checkpoint-corrupt", "the largest .distcp file is cut to 2000 bytes", _cut_shard),
        load("no-shard", "checkpoint-corrupt", "one rank's .distcp files are gone", _drop("__1_*.distcp")),
        load(
            "no-metadata",
            "checkpoint-corrupt",
            ".metadata is gone, as after a save that was cut off",
            _drop(".metadata"),
        ),
        load("cut-metadata", "checkpoint-corrupt", ".metadata is cut to 100 bytes", _cut_file(".metadata")),
        load("cut-common", "checkpoint-corrupt", "common.pt is cut to 100 bytes", _cut_file("common.pt")),
        load(
            "empty-tracker",
            "checkpoint-corrupt",
            "latest_checkpointed_iteration.txt is empty",
            _cut_file("latest_checkpointed_iteration.txt", 0),
        ),
        load(
            "healthy",
            "none",
            "resumed from the checkpoint of megatron-healthy",
            nothing,
            train_iters="6",
            save_steps="6",
        ),
        load(
            "other-tp",
            "none",
            "saved with EP2, loaded with TP2",
            nothing,
            tensor_model_parallel_size="2",
            sequence_parallel="true",
        ),
        load(
            "other-layers",
            "checkpoint-args-mismatch",
            "the model has other layers than the checkpoint",
            nothing,
            model="{assets}/qwen3-moe-wide",
        ),
        load(
            "lora",
            "checkpoint-args-mismatch",
            "a checkpoint of full training resumed with LoRA",
            nothing,
            tuner_type="lora",
            lora_rank="4",
        ),
        case("full-disk", "disk-full", "the output is a tmpfs of 600 kB", FULL_DISK),
        case("read-only", "checkpoint-write-error", "the output is mounted read-only", READ_ONLY),
        case("no-right", "checkpoint-write-error", "the output belongs to somebody else", NO_RIGHT),
        case(
            "async-full-disk",
            "disk-full",
            "the output is a tmpfs of 600 kB, and saves are asynchronous",
            FULL_DISK,
            async_save="true",
            save_steps="2",
        ),
        acted(
            "rank-killed", "rank-died", "rank 1 was killed with SIGKILL in the steps", kill_rank(1, "'loss'")
        ),
        acted(
            "rank-killed-at-load",
            "rank-died",
            "rank 1 was killed while weights were loaded",
            kill_rank(1, "Loading:"),
        ),
        acted(
            "data-worker-killed",
            "dataloader-worker-died",
            "a DataLoader worker of rank 1 was killed",
            kill_data_worker(1, "'loss'"),
        ),
        case(
            "nan-loss",
            "grad-nan",
            "a learning rate of 1e30",
            lr="1e30",
            min_lr="1e29",
            train_iters="8",
            save_steps="8",
        ),
        case(
            "fp16-overflow",
            "fp16-overflow",
            "fp16 on a machine without fp16 kernels: gradients overflow",
            torch_dtype="float16",
        ),
    ]
