"""What goes wrong at the start, in the steps and in checkpoints of ms-swift's own commands, and healthy runs
of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from .act import Run, kill_data_worker, kill_rank, terminate_rank
from .assets import edit_config, pairs, texts, write_rows
from .case import Case, Version, swift, swift_environment
from .trainer import FULL_DISK, NO_RIGHT, READ_ONLY

__all__ = [
    "STEPS",
    "Prepare",
    "healthy_cases",
    "launch_cases",
    "step_cases",
]

Prepare = Callable[[Path, Path], None]
STEPS = "1000"


def healthy_cases(version: Version) -> list[Case]:
    """The transformers path with nothing wrong."""

    def case(
        name: str,
        why: str,
        command: tuple[str, ...],
        prepare: Prepare | None = None,
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
    long = swift(version, max_steps=STEPS, save_steps=STEPS)

    def case(
        name: str,
        expect: str,
        why: str,
        wrap: tuple[str, ...] = (),
        prepare: Prepare | None = None,
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
