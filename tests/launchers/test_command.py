"""Which program a command starts, with which words, on how many processes: every launcher, nested ones too."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from diag.launch.launchers.command import Command, read_command
from diag.launch.launchers.command.shell_script import read_script


def of(words: list[str], environment: Mapping[str, str], folder: Path = Path()) -> Command:
    return read_command(words, environment, folder, certain=False)


CASES = [
    # command, environment, program, verb, processes, nodes
    ("megatron rlhf --model m", {"NPROC_PER_NODE": "8", "NNODES": "2"}, "megatron", "rlhf", 8, 2),
    ("NPROC_PER_NODE=4 megatron sft --model m", {}, "megatron", "sft", 4, None),
    ("env NPROC_PER_NODE=4 /opt/venv/bin/megatron pt --model m", {}, "megatron", "pt", 4, None),
    (
        "torchrun --nproc-per-node=8 --nnodes 2 /x/swift/cli/_megatron/rlhf.py --model m",
        {},
        "megatron",
        "rlhf",
        8,
        2,
    ),
    (
        "python3 -u -m torch.distributed.run --nproc_per_node 2 /x/swift/cli/sft.py --model m",
        {},
        "swift",
        "sft",
        2,
        None,
    ),
    ("torchrun --nnodes 1:4 --nproc_per_node 8 train.py --model m", {}, "script", "", 8, 4),
    (
        "srun -N 4 --ntasks-per-node=1 bash -c 'NPROC_PER_NODE=8 megatron sft --model m'",
        {},
        "megatron",
        "sft",
        8,
        None,  # ms-swift is told of no other node, on however many srun starts it
    ),
    ("accelerate launch --num_processes 16 --num_machines 2 train.py --model m", {}, "script", "", 8, 2),
    ("deepspeed --num_gpus 4 --num_nodes 2 train.py --model m", {}, "script", "", 4, 2),
    ("deepspeed --include localhost:0,1,5 train.py --model m", {}, "script", "", 3, None),
    (
        "nohup timeout -k 5 9 numactl -C 0 torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2",
        {},
        "megatron-lm",
        "pt",
        2,
        None,
    ),
    ("diag run --quiet -- swift rlhf --model m", {"NPROC_PER_NODE": "2"}, "swift", "rlhf", 2, None),
    (
        "/opt/venv/bin/python /opt/venv/bin/torchrun --nproc_per_node 8 t.py --model m",
        {},
        "script",
        "",
        8,
        None,
    ),
]


@pytest.mark.parametrize(("command", "environment", "program", "verb", "processes", "nodes"), CASES)
def test_the_training_program_is_found_behind_its_launchers(
    command: str, environment: dict[str, str], *, program: str, verb: str, processes: int, nodes: int | None
) -> None:
    launch = of(shlex.split(command), environment)
    assert (launch.program, launch.verb, launch.processes, launch.nodes) == (program, verb, processes, nodes)
    assert launch.words[0].startswith("--")


def test_one_process_is_taken_and_said_where_nproc_is_not_set() -> None:
    launch = of(["megatron", "sft", "--model", "m"], {})
    assert launch.processes == 1
    assert "NPROC_PER_NODE" in launch.notes[0]


def test_a_rank_knows_its_processes_and_nodes_from_its_environment() -> None:
    env = {"RANK": "3", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}
    launch = of(["/usr/bin/python3", "-u", "/opt/swift/cli/_megatron/rlhf.py", "--model", "m"], env)
    assert (launch.program, launch.verb, launch.processes, launch.nodes) == ("megatron", "rlhf", 4, 2)


def test_an_accelerate_config_file_tells_processes_and_sharding(tmp_path: Path) -> None:
    text = "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\nfsdp_config:\n  fsdp_offload_params: true\n"
    (tmp_path / "fsdp.yaml").write_text(text)
    launch = of(["accelerate", "launch", "--config_file", "fsdp.yaml", "train.py", "--x"], {}, tmp_path)
    assert launch.processes == 4 and launch.nodes == 2
    assert launch.distributed["kind"] == "fsdp" and launch.distributed["fsdp_offload_params"] is True


SCRIPT = """#!/bin/bash
# how we train
export NPROC_PER_NODE=8   # all of them
NNODES=${NNODES:-2}
MODEL="/data/Qwen3-30B-A3B"
ARGS=(
    --rlhf_type dpo
    --tensor_model_parallel_size 2
)
pip install ms-swift
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
megatron rlhf \\
    --model $MODEL \\
    "${ARGS[@]}" \\
    --max_length ${LEN:-4096} "$@" 2>&1 | tee log.txt
"""


def test_a_shell_script_is_read_with_its_variables(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    launch = of(["bash", "train.sh", "--train_iters", "5"], {"LEN": "2048"}, tmp_path)
    assert launch.program == "megatron" and launch.processes == 8
    assert list(launch.words) == ["--model", "/data/Qwen3-30B-A3B", "--rlhf_type", "dpo", "--tensor_model_parallel_size", "2",
                            "--max_length", "2048", "--train_iters", "5"]  # fmt: skip
    assert "train.sh" in launch.notes[0]


def test_a_script_without_training_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("echo hello --world\nls -l\n")
    assert "no training command" in of(["sh", "x.sh"], {}, tmp_path).unread


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "no command"),
        ("env A=1", "no command"),
        ("megatron export --model m", "trains nothing"),
        ("megatron", "trains nothing"),
        ("python -c 'print(1)'", "python -c"),
        ("python", "starts nothing"),
        ("bash", "no script"),
        ("bash missing.sh", "cannot read"),
        ("accelerate launch --config_file missing.yaml t.py", "cannot read"),
        ("torchrun --nproc_per_node eight t.py", "not a number of processes"),
        ("NPROC_PER_NODE=0 megatron sft", "not a number of processes"),
        ("nohup nohup nohup nohup nohup nohup nohup nohup nohup torchrun t.py", "too many"),
    ],
)
def test_what_is_no_training_command_is_refused_in_words(command: str, said: str, tmp_path: Path) -> None:
    assert said in of(shlex.split(command), {}, tmp_path).unread


@pytest.mark.parametrize(
    "text",
    ["megatron 'sft", "A=$A megatron sft --x $A", "${${", "B=(\n" * 3, "\\\n\\\n", "export\nexport =\n"],
)
def test_a_strange_script_raises_nothing(text: str) -> None:
    found = read_script(text, ["a"], {})
    assert found.words is None or isinstance(found.words, list)
