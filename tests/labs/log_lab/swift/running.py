"""What goes wrong at the start, in the steps and in checkpoints of ms-swift's own commands, and healthy runs
of them."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from .act import Run, kill_data_worker, kill_rank, terminate_rank
from .assets import edit_config, pairs, texts, write_rows
from .case import Case, Version, megatron, megatron_environment, swift, swift_environment
from .trainer import FULL_DISK, NO_RIGHT, READ_ONLY

__all__ = [
    "healthy_cases",
    "launch_cases",
    "megatron_checkpoint_cases",
    "megatron_healthy_cases",
    "step_cases",
]

_Prepare = Callable[[Path, Path], None]
_STEPS = "1000"


def healthy_cases(version: Version) -> list[Case]:
    """The transformers path with nothing wrong."""

    def case(
        name: str,
        why: str,
        command: tuple[str, ...],
        prepare: _Prepare | None = None,
        *,
        terminal: bool = False,
    ) -> Case:
        ranks = 1 if name.endswith("one-process") else 2
        return Case(
            f"healthy-{name}", "none", why, command, swift_environment(ranks), prepare, terminal=terminal
        )

    def chat(work: Path, assets: Path) -> None:
        write_rows(work / "data" / "train.jsonl", [{"messages": row["messages"]} for row in pairs()])

    def uneven(work: Path, assets: Path) -> None:
        long = {"role": "assistant", "content": "the river crosses the stone " * 40}
        rows: list[dict[str, object]] = [{"messages": row["messages"]} for row in pairs()]
        for i in range(0, len(rows), 3):
            rows[i] = {"messages": [{"role": "user", "content": "Go on."}, long]}
        write_rows(work / "data" / "train.jsonl", rows)

    def raw(work: Path, assets: Path) -> None:
        rows: list[dict[str, object]] = [
            {"messages": [{"role": "assistant", "content": row["text"]}]} for row in texts()
        ]
        write_rows(work / "data" / "train.jsonl", rows)

    lora: dict[str, str | None] = {version.tuner: "lora", "lora_rank": "4", "target_modules": "all-linear"}
    data = "{work}/data/train.jsonl"
    return [
        case("dpo", "nothing", swift(version)),
        case("dpo-terminal", "nothing; on a terminal", swift(version), terminal=True),
        case("dpo-lora", "LoRA", swift(version, **lora)),
        case(
            "sft",
            "sft with evaluation",
            swift(version, "sft", dataset=data, split_dataset_ratio="0.2", eval_steps="2"),
            prepare=chat,
        ),
        case(
            "sft-one-process",
            "sft without torchrun, LoRA",
            swift(version, "sft", dataset=data, **lora),
            prepare=chat,
        ),
        case(
            "sft-long-rows-dropped",
            "some rows are longer than max_length and are left out",
            swift(version, "sft", dataset=data),
            prepare=uneven,
        ),
        case("pt", "pre-training", swift(version, "pt", dataset=data), prepare=raw),
        case("kto", "KTO", swift(version, rlhf_type="kto", dataset="{assets}/pairs.jsonl")),
    ]


def step_cases(version: Version) -> list[Case]:
    """The transformers path: numbers, ranks, workers, disks, resume."""
    environment = swift_environment()
    long = swift(version, max_steps=_STEPS, save_steps=_STEPS)

    def case(
        name: str,
        expect: str,
        why: str,
        wrap: tuple[str, ...] = (),
        prepare: _Prepare | None = None,
        **flags: str | None,
    ) -> Case:
        return Case(name, expect, why, swift(version, **flags), environment, prepare, wrap=wrap)

    def acted(name: str, expect: str, why: str, act: Callable[[Run], None]) -> Case:
        return Case(name, expect, why, long, environment, act=act, ranks=(1,))

    def file_in_the_way(work: Path, assets: Path) -> None:
        (work / "out").write_text("not a folder\n")

    return [
        case(
            "nan-loss",
            "grad-nan",
            "a learning rate of 1e30: grad_norm is nan from step 2, the loss stays a number",
            learning_rate="1e30",
            max_steps="6",
            save_steps="6",
        ),
        case(
            "fp16-overflow",
            "fp16-overflow",
            "fp16 with weights a thousand times too large",
            prepare=_large_weights,
            torch_dtype="float16",
            model="{work}/model",
            max_steps="6",
            save_steps="6",
        ),
        acted(
            "rank-killed", "rank-died", "rank 1 was killed with SIGKILL in the steps", kill_rank(1, "'loss'")
        ),
        acted("rank-terminated", "rank-died", "rank 1 got SIGTERM in the steps", terminate_rank(1, "'loss'")),
        acted(
            "data-worker-killed",
            "dataloader-worker-died",
            "a DataLoader worker of rank 1 was killed",
            kill_data_worker(1, "'loss'"),
        ),
        case("full-disk", "disk-full", "the output is a tmpfs of 600 kB", FULL_DISK),
        case("read-only", "checkpoint-write-error", "the output is mounted read-only", READ_ONLY),
        case("no-right", "checkpoint-write-error", "the output belongs to somebody else", NO_RIGHT),
        case("file-in-the-way", "checkpoint-write-error", "output_dir is a file", prepare=file_in_the_way),
        case(
            "resume-missing",
            "checkpoint-missing",
            "resume_from_checkpoint does not exist",
            resume_from_checkpoint="{work}/out/checkpoint-9",
        ),
        Case(
            "adapter-missing",
            "checkpoint-missing",
            "the adapters folder does not exist",
            swift(version, **{"adapters": "{work}/out/checkpoint-9", version.tuner: "lora"}),
            environment,
        ),
    ]


def _large_weights(work: Path, assets: Path) -> None:
    from safetensors.numpy import load_file, save_file

    edit_config(assets / "qwen3-tiny", work / "model")
    path = work / "model" / "model.safetensors"
    save_file(
        {name: tensor * 1000 for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"}
    )


def _hold_port(run: Run) -> None:
    # Bound before the ranks come to it: torchrun alone needs a second to import torch.
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", 29517))
        taken.listen()
        run.wait_for("EADDRINUSE")
        run.root.wait(60)


def launch_cases(version: Version) -> list[Case]:
    """Nodes, ports and addresses; a launcher does the same with `swift` and `megatron`."""

    def case(
        name: str,
        expect: str,
        why: str,
        act: Callable[[Run], None] | None = None,
        seconds: int = 150,
        **env: str,
    ) -> Case:
        return Case(
            name,
            expect,
            why,
            swift(version, ddp_timeout="20"),
            swift_environment(**env),
            act=act,
            seconds=seconds,
        )

    return [
        case(
            "port-taken",
            "port-in-use",
            "MASTER_PORT is taken by another process",
            _hold_port,
            MASTER_PORT="29517",
        ),
        case(
            "one-node-of-two",
            "rendezvous-failure",
            "NNODES=2 and only node 0 was started; ddp_timeout 20 s",
            NNODES="2",
            NODE_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29518",
        ),
        case(
            "master-unknown",
            "hostname-resolution",
            "MASTER_ADDR is a name that does not resolve; ended after 150 s",
            NNODES="2",
            NODE_RANK="1",
            MASTER_ADDR="node-zero.invalid",
            MASTER_PORT="29519",
        ),
        case(
            "master-refuses",
            "rendezvous-failure",
            "nothing listens at MASTER_ADDR:MASTER_PORT; ended after 150 s",
            NNODES="2",
            NODE_RANK="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29520",
        ),
        case(
            "node-rank-beyond",
            "launch-mismatch",
            "NODE_RANK=2 of NNODES=2",
            NNODES="2",
            NODE_RANK="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29521",
        ),
        case("nproc-word", "launch-mismatch", "NPROC_PER_NODE=two", NPROC_PER_NODE="two"),
        case(
            "nproc-gpu",
            "launch-mismatch",
            "NPROC_PER_NODE=gpu on a machine without a GPU",
            NPROC_PER_NODE="gpu",
        ),
    ]


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


def _saved(damage: Callable[[Path], None]) -> _Prepare:
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
            megatron(train_iters=_STEPS, save_steps=_STEPS),
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
