"""Where a command's nodes meet, by what its launcher reads: torchrun 2.13, ms-swift 4.6, accelerate 1.15,
DeepSpeed 0.18."""

from __future__ import annotations

import pytest

from diag.launch.launchers.rendezvous import Rendezvous, rendezvous


def of(words: str, **env: str) -> Rendezvous:
    return rendezvous(words.split(), env)


SWIFT_ENV = {
    "NNODES": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29501",
    "NPROC_PER_NODE": "8",
}


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ("torchrun --nproc_per_node 8 t.py", {}, (1, None, 29500, 0)),
        ("torchrun --nnodes 2 --node_rank 1 --master_addr a --master_port 1234 t.py", {}, (2, "a", 1234, 1)),
        ("torchrun --nnodes=2 --node-rank=1 --master-addr=a --master-port=1234 t.py", {}, (2, "a", 1234, 1)),
        ("python -m torch.distributed.run --nnodes 2 --master_addr a t.py", {}, (2, "a", 29500, 0)),
        ("/venv/bin/torchrun --nnodes 1:4 --rdzv_backend c10d --rdzv_endpoint a t.py", {}, (4, "a", 29400, None)),
        ("torchrun --nnodes 2 --rdzv-backend=c10d --rdzv-endpoint=[fd00::1]:5 t.py", {}, (2, "fd00::1", 5, None)),
        ("torchrun --nnodes 2 --master_addr [fd00::1] t.py", {}, (2, "fd00::1", 29500, 0)),
        # what torchrun does not read
        ("torchrun --nnodes 2 t.py", {"MASTER_ADDR": "a", "NODE_RANK": "1"}, (2, None, 29500, 0)),
        ("torchrun t.py --nnodes 2", {"PET_NNODES": "3", "PET_NODE_RANK": "2"}, (2, None, 29500, 2)),
        ("torchrun t.py", {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "a"}, (3, "a", 29500, 2)),
        # ms-swift: variables only, made flags of torchrun
        ("megatron rlhf --rlhf_type dpo", SWIFT_ENV, (2, "node0", 29501, 1)),
        ("diag run -- swift sft --model m", SWIFT_ENV, (2, "node0", 29501, 1)),
        ("swift sft --nnodes 4 --master_addr x", {}, (1, None, 29500, 0)),
        # others
        ("accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip a --main_process_port=5", {}, (2, "a", 5, 1)),
        ("deepspeed --num_nodes 2 --master_addr a --node_rank 1 t.py", SWIFT_ENV, (2, "a", 29500, 1)),
        ("bash train.sh", SWIFT_ENV, (2, "node0", 29501, 1)),
        ("srun python t.py", {"SLURM_NNODES": "2", "SLURM_NODEID": "1", "MASTER_ADDR": "n1"}, (2, "n1", 29500, 1)),
        ("srun torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint n1:5 t.py", {"SLURM_NNODES": "2"}, (2, "n1", 5, None)),
        ("", {}, (1, None, 29500, None)),
        ("torchrun --nnodes", {}, (1, None, 29500, 0)),
    ],
)  # fmt: skip
def test_meeting_place(
    words: str, env: dict[str, str], expected: tuple[int, str | None, int, int | None]
) -> None:
    found = of(words, **env)

    assert (found.nodes, found.address, found.port, found.node_rank) == expected


def test_variables_that_the_launcher_does_not_read_are_told() -> None:
    assert of("torchrun --nnodes 2 t.py", **SWIFT_ENV).ignored == (
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
    )
    assert of("megatron sft", **SWIFT_ENV).ignored == ()


def test_values_that_are_no_numbers_are_told_and_not_taken() -> None:
    found = of("torchrun --nnodes two --master_port=$PORT t.py")

    assert (found.nodes, found.port, found.bad) == (1, 29500, ("--nnodes two", "--master_port $PORT"))
