"""One command, one answer: `diag doctor`, `diag estimate` and the running job state the same nodes, ranks and
meeting point."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.launch.launchers.command import read_command
from diag.launch.launchers.nodes import nodes_of
from diag.preflight.estimate import estimate
from diag.preflight.launch_devices import ranks_here
from diag.preflight.launch_facts import launch_facts

QWEN = "--model Qwen/Qwen2.5-7B-Instruct --max_length 2048"
MEGATRON = f"{QWEN} --tensor_model_parallel_size 4 --micro_batch_size 1"
TWO = {
    "NNODES": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29501",
    "NPROC_PER_NODE": "8",
}
IN_FRONT = " ".join(f"{name}={value}" for name, value in TWO.items())
OF_DOCKER = " ".join(f"-e {name}={value}" for name, value in TWO.items())
FLAGS = "--nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 --master_port=29501"
AT_NODE_0 = ("10.0.0.1", 29501, 1)
NOWHERE = (None, 29500, 0)
FILES = {
    "hosts": "w0 slots=8\nw1 slots=8\nw2 slots=8\n",
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: 10.0.0.1\n"
    "main_process_port: 29501\n",
    "flags.sh": f"#!/bin/bash\ntorchrun \\\n    {FLAGS} \\\n    swift/cli/sft.py {QWEN} --deepspeed zero3\n",
    "exported.sh": "\n".join(f"export {name}={value}" for name, value in TWO.items())
    + f"\nmegatron sft {MEGATRON}\n",
    "passed.sh": f"N=${{1:-4}}\nNPROC_PER_NODE=$N swift sft {QWEN}\n",
    "outer.sh": "set -e\ncd inner && bash inner.sh\n",
    "docker.sh": f'docker run --rm {OF_DOCKER} img \\\n  bash -c "cd /app && swift sft {QWEN}" 2>&1 | tee log\n',
    "inner/inner.sh": f"{IN_FRONT} swift sft {QWEN}\n",
}
# (command, environment, nodes, ranks on each, (address, port, node rank))
CASES: dict[str, tuple[str, dict[str, str], int, int, tuple[str | None, int, int | None]]] = {
    # ms-swift: variables only
    "swift": (f"swift sft {QWEN}", TWO, 2, 8, AT_NODE_0),
    "swift, variables in front": (f"{IN_FRONT} swift sft {QWEN} --deepspeed zero3", {}, 2, 8, AT_NODE_0),
    "swift, by env": (f"env -u RANK {IN_FRONT} swift sft {QWEN}", {"RANK": "3"}, 2, 8, AT_NODE_0),
    "megatron": (f"megatron rlhf --rlhf_type dpo {MEGATRON}", TWO, 2, 8, AT_NODE_0),
    "megatron, one node": (
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 "
        f"megatron rlhf --rlhf_type dpo {MEGATRON}", {}, 1, 8, NOWHERE,
    ),
    "one process": (f"CUDA_VISIBLE_DEVICES=0 swift sft {QWEN}", {}, 1, 1, NOWHERE),
    "two of four GPUs": (f"NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft {QWEN} --fsdp auto_wrap", {}, 1, 2, NOWHERE),
    "what ms-swift does not read": (f"swift sft {QWEN} --nnodes 4", {"PET_NNODES": "3", "NPROC_PER_NODE": "2"}, 1, 2, NOWHERE),
    "module of ms-swift": (f"python -m swift.cli.main sft {QWEN}", TWO, 2, 8, AT_NODE_0),
    # torchrun: its flags, then PET_*
    "torchrun": (f"torchrun {FLAGS} swift/cli/sft.py {QWEN}", {}, 2, 8, AT_NODE_0),
    "torchrun with dashes": (f"torchrun {FLAGS.replace('_', '-')} t.py {QWEN}", {}, 2, 8, AT_NODE_0),
    "torchrun, one node": (f"torchrun --nproc_per_node=4 --master_port=29501 t.py {QWEN}", {}, 1, 4, (None, 29501, 0)),
    "torchrun reads no NNODES": (f"torchrun --nproc_per_node 4 t.py {QWEN}", TWO, 1, 4, NOWHERE),
    "torchrun's variables": (
        f"torchrun t.py {QWEN}",
        {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "29501"},
        2, 8, AT_NODE_0,
    ),
    "flag above variable": (f"torchrun --nnodes 2 t.py {QWEN}", {"PET_NNODES": "4", "PET_MASTER_ADDR": "a"}, 2, 1, ("a", 29500, 0)),
    "flags behind the script are its own": (f"torchrun --nproc_per_node 2 t.py {QWEN} --nnodes 4", {}, 1, 2, NOWHERE),
    "the last of two wins": (f"torchrun --nnodes 4 --nnodes 2 --master_addr a t.py {QWEN}", {}, 2, 1, ("a", 29500, 0)),
    "least and most": (f"torchrun --nnodes 1:4 --nproc_per_node 8 t.py {QWEN}", {}, 4, 8, NOWHERE),
    "c10d": (
        f"torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint n0 t.py {QWEN}", {}, 2, 8, ("n0", 29400, None),
    ),
    "module of torch": (f"python3 -u -m torch.distributed.run {FLAGS} t.py {QWEN}", {}, 2, 8, AT_NODE_0),
    "Python's own torchrun": (f"/venv/bin/python /venv/bin/torchrun {FLAGS} t.py {QWEN}", {}, 2, 8, AT_NODE_0),
    "behind wrappers": (
        f"nohup timeout -k 5 9h numactl -C 0 nice -n 5 torchrun {FLAGS} -m pkg.train {QWEN}", {}, 2, 8, AT_NODE_0,
    ),
    "behind diag": (f"diag run --quiet -- torchrun {FLAGS} t.py {QWEN}", {}, 2, 8, AT_NODE_0),
    # accelerate: its flags, then its file; processes are those of all machines
    "accelerate": (
        f"accelerate launch --num_machines 2 --num_processes 16 --machine_rank 1 --main_process_ip 10.0.0.1 "
        f"--main_process_port 29501 t.py {QWEN}", {}, 2, 8, AT_NODE_0,
    ),
    "accelerate's file": (f"accelerate launch --config_file fsdp.yaml t.py {QWEN}", {}, 2, 8, AT_NODE_0),
    "flag above file": (
        f"accelerate launch --config_file fsdp.yaml --num_machines 4 --main_process_port 5 t.py {QWEN}", {}, 4, 4, ("10.0.0.1", 5, 1),
    ),
    "accelerate reads no NNODES": (f"accelerate launch --num_processes 4 t.py {QWEN}", TWO, 1, 4, NOWHERE),
    # deepspeed: its hostfile, filtered
    "deepspeed's hostfile": (f"deepspeed --hostfile hosts t.py {QWEN}", {}, 3, 8, (None, 29500, None)),
    "deepspeed --exclude": (f"deepspeed -H hosts --exclude w1 t.py {QWEN}", {}, 2, 8, (None, 29500, None)),
    "deepspeed --include": (f"deepspeed --hostfile hosts --include w0:0,1@w2:4,5 t.py {QWEN}", {}, 2, 2, (None, 29500, None)),
    "deepspeed --num_nodes": (
        f"deepspeed --hostfile hosts --num_nodes 2 --num_gpus 4 --master_addr 10.0.0.1 t.py {QWEN}", {}, 2, 4,
        ("10.0.0.1", 29500, None),
    ),
    "deepspeed on this machine": (f"deepspeed --num_gpus 8 t.py {QWEN}", {}, 1, 8, (None, 29500, None)),
    # srun decides for programs that are no launchers
    "srun": (f"srun -N 2 --ntasks-per-node=8 python t.py {QWEN}", {"MASTER_ADDR": "10.0.0.1"}, 2, 8, ("10.0.0.1", 29500, None)),
    "srun above NNODES": (f"srun -N2 -n16 python t.py {QWEN}", {"NNODES": "4"}, 2, 8, (None, 29500, None)),
    "srun of torchrun": (f"srun -N 2 --ntasks-per-node=1 torchrun --nproc_per_node 8 t.py {QWEN}", {}, 1, 8, NOWHERE),
    "srun of a shell": (f"srun -N 4 --ntasks-per-node=1 bash -c '{IN_FRONT} megatron sft {MEGATRON}'", {}, 2, 8, AT_NODE_0),
    "srun of ms-swift, told of one": (f"srun -N 4 --ntasks-per-node=1 swift sft {QWEN}", {"NPROC_PER_NODE": "8"}, 1, 8, NOWHERE),
    "srun --export": (f"srun -N 2 --export=ALL,NNODES=2,NPROC_PER_NODE=8 swift sft {QWEN}", {}, 2, 8, NOWHERE),
    "a batch script without srun": (f"python t.py {QWEN}", {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}, 1, 1, (None, 29500, None)),
    # mpirun, where it is told of hosts with slots
    "mpirun": (f"mpirun -np 16 -H a:8,b:8,c:8 -x A python t.py {QWEN}", {"MASTER_ADDR": "a"}, 2, 8, ("a", 29500, None)),
    "mpirun's hostfile": (f"mpirun --hostfile hosts -np 24 python t.py {QWEN}", {}, 3, 8, (None, 29500, None)),
    # scripts
    "script with flags": ("bash flags.sh", {}, 2, 8, AT_NODE_0),
    "script that exports": ("/bin/bash exported.sh", {"NNODES": "7"}, 2, 8, AT_NODE_0),
    "script with an argument": ("./passed.sh 2", {}, 1, 2, NOWHERE),
    "script of a script": ("bash -x outer.sh", {}, 2, 8, AT_NODE_0),
    "words of a shell": (f"bash -c 'cd /app && {IN_FRONT} swift sft {QWEN}'", {}, 2, 8, AT_NODE_0),
    # containers: nothing of this environment but what is handed on
    "docker run": (
        f"docker run --rm -it --gpus all -p 29501:29501 --shm-size=50G -v /srv/jobs:/app {OF_DOCKER} swift:3.7 "
        f"bash -c 'cd /app && swift sft {QWEN}'", {"NNODES": "4"}, 2, 8, AT_NODE_0,
    ),
    "docker run in a script": ("bash docker.sh", {}, 2, 8, AT_NODE_0),
    "podman run": (f"podman run --network host {OF_DOCKER} swift:3.7 swift sft {QWEN}", {}, 2, 8, AT_NODE_0),
    "docker hands a variable on": (f"docker run -e NPROC_PER_NODE -eNNODES=1 img swift sft {QWEN}", TWO, 1, 8, NOWHERE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_doctor_estimate_and_the_running_job_agree(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, env, nodes, ranks, (address, port, node_rank) = CASES[name]
    monkeypatch.chdir(tmp_path)
    for file, content in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    words = shlex.split(text)

    facts = launch_facts(words, env)
    told = estimate(words, env, with_advice=False)
    running = nodes_of(words, env)

    assert (facts.nodes, ranks_here(facts)) == (nodes, ranks)
    assert (facts.meeting.address, facts.meeting.port, facts.meeting.node_rank) == (address, port, node_rank)
    assert (told.plan.layout.nodes, told.plan.layout.processes) == (nodes, ranks)
    assert running.count == nodes
    assert running.port == (port if address else None)
    assert running.address == (address or (running.hosts[0] if running.hosts else None))


def test_estimate_says_that_each_node_of_srun_would_train_separately() -> None:
    words = shlex.split(f"srun -N 2 torchrun --nproc_per_node 8 t.py {QWEN}")

    def notes(words: list[str]) -> list[str]:
        return [note for note in estimate(words, {}, with_advice=False).notes if "train separately" in note]

    assert notes(words) == [
        "srun starts CMD on 2 nodes, but torchrun is configured for one: each node would train separately"
    ]
    assert not notes([*words[:4], "--nnodes", "2", *words[4:]])


@pytest.mark.parametrize(
    ("command", "unread"),
    [
        ("docker run img", "img starts by itself"),
        ("docker run --rm", "names no image"),
        ("docker run img bash /jobs/train.sh", "in the image img"),
        ("ssh gpu2 torchrun t.py", "starts it elsewhere"),
        ("kubectl exec pod", "starts it elsewhere"),
        ("bash gone.sh", "cannot read"),
        ("bash -c 'make all'", "no training command"),
        ("bash pipe", "not a regular file"),
    ],
)
def test_what_is_not_read_has_a_reason(
    command: str, unread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    found = read_command(shlex.split(command), {})

    assert unread in found.unread and not found.program
    assert found.unsure


@pytest.mark.parametrize(
    "start",
    ["mpirun -np 16", "mpirun -np 12 -H a:8,b:8", "mpirun -np 16 -H a,b", "mpirun -np 8 -ppn 4 -H a:8,b:8"],
)
def test_what_mpirun_is_not_told_stays_open(start: str) -> None:
    found = read_command([*start.split(), "python", "t.py"], {})

    assert (found.program, found.processes) == ("script", None)
    assert found.unsure == "`mpirun` may start ranks by itself"


def test_variable_without_a_value_leaves_the_number_of_nodes_open() -> None:
    found = read_command(["bash", "-c", "torchrun --nnodes $NODES --master_addr $HEAD t.py --x"], {})

    assert found.unsure == "`--nnodes $NODES` is computed when the job starts"
    assert read_command(found.argv, {"NODES": "2", "HEAD": "a"}).nodes == 2


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --config_file gone.yaml --num_machines 2 --main_process_ip a --machine_rank 1 t.py",
        "accelerate launch --num_machines 2 --num_processes many --main_process_ip a --machine_rank 1 t.py",
        "deepspeed --num_nodes 2 --num_gpus all --master_addr a --node_rank 1 t.py",
        "torchrun --nnodes 2 --nproc_per_node all --master_addr a --node_rank 1 t.py",
    ],
)
def test_half_a_command_still_tells_where_the_nodes_meet(command: str) -> None:
    found = read_command(command.split(), {})

    assert found.unread and not found.unsure
    assert (found.meeting.nodes, found.meeting.address, found.meeting.node_rank) == (2, "a", 1)


def test_script_of_a_container_is_read_where_it_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("NPROC_PER_NODE=4 swift sft --model m\n")

    for command in ("bash /app/train.sh", "bash -c 'cd /app && bash train.sh'"):
        found = read_command(["docker", "run", "-v", f"{tmp_path}:/app:ro", "img", *shlex.split(command)], {})
        assert (found.program, found.processes, found.unread) == ("swift", 4, "")


def test_inside_of_a_pod_that_runs_is_read_without_this_environment() -> None:
    found = read_command(shlex.split("kubectl exec -n a pod -- swift sft --model m"), {"NPROC_PER_NODE": "8"})

    assert (found.program, found.processes, found.elsewhere, found.is_here) == ("swift", 1, "kubectl", False)


TOKENS = [
    "env", "-u", "A=1", "NNODES=x", "nohup", "timeout", "5", "srun", "-N2", "-N", "--export=A,B=1", "mpirun", "-np", "docker",
    "podman", "run", "exec", "-it", "-e", "-v", "a:/b", "--mount", "type=bind", "--shm-size", "--", "kubectl", "ssh", "bash", "sh",
    "-c", "x.sh", "cd /a && bash b.sh", "swift sft --x $1", "torchrun", "--nnodes", "1:2", "--nproc_per_node", "gpu", "--rdzv_endpoint",
    "[::1", "accelerate", "launch", "--config_file", "deepspeed", "--include", "a:0@b", "--num_gpus", "-1", "python", "-m",
    "torch.distributed.run", "-X", "swift", "megatron", "sft", "t.py", "--x", "", "-", "=", "--=", "\0", "diag",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_any_words_give_a_command_or_a_reason(words: list[str]) -> None:
    found = read_command(words, {"RANK": "0", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "x"})

    assert bool(found.program) != bool(found.unread)
    assert found.meeting.nodes >= 1
