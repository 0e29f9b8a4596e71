"""All lines of one report speak of the same job: its nodes and ranks are read once, wherever CMD has them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from diag.preflight import Line, gpus, network
from diag.preflight.checks import CHECKS
from diag.preflight.launch_facts import launch_facts
from diag.preflight.plan import make_plan

MODEL = "--model Qwen/Qwen2.5-72B-Instruct --output_dir /srv/out --deepspeed zero3"
TORCHRUN = (
    f"torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=192.0.2.10 swift/cli/sft.py {MODEL}"
)
VARIABLES = "NNODES=2 NODE_RANK=1 MASTER_ADDR=192.0.2.10 MASTER_PORT=29500 NPROC_PER_NODE=8"
SHELL = f"export {VARIABLES.replace(' ', chr(10) + 'export ')}\n"
# (what stands in the script, nodes, ranks on each)
SCRIPTS = {
    "torchrun's flags": (TORCHRUN, 2, 8),
    "torchrun over lines": (TORCHRUN.replace(" --", " \\\n    --"), 2, 8),
    "in front of swift": (f"# two nodes\n{VARIABLES.replace(' ', ' ' + chr(92) + chr(10))} \\\nswift sft {MODEL}", 2, 8),
    "exported": (f"{SHELL}megatron sft --load /m --save /srv/out --tensor_model_parallel_size 4", 2, 8),
    "module of torch": (
        "python -m torch.distributed.run --nproc_per_node 8 --nnodes 8 --node_rank 3 --master_addr 192.0.2.10 sft.py --x", 8, 8,
    ),
    "numbers in variables": (
        "GPUS=4\nNODES=${NODES:-3}\ntorchrun --nproc_per_node $GPUS --nnodes $NODES --node_rank 2 --master_addr 192.0.2.10 t.py "
        "--output_dir /srv/out", 3, 4,
    ),
    "one node": ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft --model m --output_dir out", 1, 2),
    "one process": ("swift sft --model m --output_dir out", 1, 1),
    "environment of conda": (
        f'eval "$(conda shell.bash hook)"\nsource /opt/conda/bin/activate job\nmodule load cuda\n{TORCHRUN}', 2, 8,
    ),
    "defaults": (
        f'if [ -z "$NNODES" ]; then\n  NNODES=2\nfi\n[ -z "${{GPUS}}" ] && GPUS=8\nNPROC_PER_NODE=$GPUS NNODES=$NNODES '
        "NODE_RANK=1 "
        f"MASTER_ADDR=192.0.2.10 swift sft {MODEL}", 2, 8,
    ),
    "srun": ("srun -N 4 --ntasks-per-node=8 python t.py --output_dir out", 4, 8),
    "srun, all in one word": ("srun -N2 -n16 python t.py --output_dir out", 2, 8),
    "accelerate": (
        "accelerate launch --num_machines 2 --num_processes 16 --machine_rank 1 --main_process_ip 192.0.2.10 t.py --x", 2, 8,
    ),
    "deepspeed": ("deepspeed --num_nodes 2 --num_gpus 8 --master_addr 192.0.2.10 t.py --deepspeed z.json --output_dir o", 2, 8),
}  # fmt: skip


def ways(text: str, folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The same job as a script, as the words of -c, behind a wrapper, and plainly, where it is one line."""
    script = folder / "train.sh"
    script.write_text(f"#!/bin/bash\nset -e\n{text}\n")
    yield ["bash", str(script)], {}
    yield [str(script)], {}
    yield ["bash", "-c", text], {}
    yield ["nohup", "bash", str(script), "x"], {}
    if "\n" not in text and "=" not in text.split(maxsplit=1)[0]:
        yield shlex.split(text), {}


def numbers(lines: list[Line]) -> tuple[set[int], set[int]]:
    """Nodes and ranks of a node that the lines speak of."""
    text = "\n".join(line.said for line in lines)
    nodes = {
        int(number)
        for pattern in (r"(\d+) nodes", r"node \d+ of (\d+)", r"on (\d+) machines")
        for number in re.findall(pattern, text)
    }
    nodes |= {1 for _ in re.finditer(r"one node", text)}
    ranks = {int(number) for number in re.findall(r"(\d+) ranks? (?:on |and |for |start|,|\()", text)}
    return nodes, ranks


def report(command: list[str], env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Without what looks into running processes and Pythons: no line of theirs has a number of the job."""
    for name in (
        "NNODES",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NPROC_PER_NODE",
        "RANK",
        "WORLD_SIZE",
        "SLURM_NNODES",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("diag.preflight.rendezvous.check_other_node", lambda plan, where, *_, **__: [
        Line("rendezvous", "ok", f"node {plan.meeting.node_rank} of {plan.meeting.nodes}: {where}")])  # fmt: skip
    facts = launch_facts(command, env, gpus.uuids_here())
    here = [
        line
        for check in CHECKS
        if check.__name__ not in ("check_leftovers", "check_stacks")
        for line in check(facts)
    ]
    return [*here, *network.check_network(command, env=env)]


@pytest.mark.parametrize("gpus_here", [None, 8], ids=["no GPU seen", "8 GPUs"])
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_lines_of_one_report_agree(
    name: str, gpus_here: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, nodes, ranks = SCRIPTS[name]
    monkeypatch.setattr(
        gpus, "uuids_here", lambda: None if gpus_here is None else tuple(f"GPU-{n}" for n in range(gpus_here))
    )

    for command, env in ways(text, tmp_path):
        lines = report(command, env, monkeypatch)

        told_nodes, told_ranks = numbers(lines)
        assert told_nodes <= {nodes}, (command, [line for line in lines if "node" in line.said])
        assert told_ranks <= {ranks, ranks * nodes}, (
            command,
            [line for line in lines if "rank" in line.said],
        )
        assert told_nodes or nodes == 1
        facts, plan = launch_facts(command, env), make_plan(command, env, 0.0)
        assert facts.nodes == plan.nodes == nodes, command
        assert plan.meeting == facts.meeting


@pytest.mark.parametrize(
    "start", ["-N 2 -n 16", "-N2 -n16", "--nodes=2 --ntasks=16", "--nodes 2 --ntasks 16"]
)
def test_tasks_of_srun_are_spread_over_its_nodes(start: str) -> None:
    facts = launch_facts(shlex.split(f"srun {start} python t.py --x"), {})

    assert facts.launch is not None
    assert (facts.nodes, facts.launch.processes) == (2, 8)


def test_srun_without_a_number_of_nodes_leaves_it_open() -> None:
    assert launch_facts(shlex.split("srun -n 16 python t.py"), {}).nodes is None
    assert launch_facts(shlex.split("srun -n 16 python t.py"), {"SLURM_NNODES": "2"}).nodes == 2


def test_launcher_that_srun_starts_on_several_nodes_and_that_is_told_of_none_trains_for_itself() -> None:
    from diag.preflight.launch import check_launch

    def said(command: str) -> list[str]:
        return [
            line.said
            for line in check_launch(launch_facts(shlex.split(command), {}))
            if line.status == "problem"
        ]

    (line,) = said("srun -N 2 --ntasks-per-node=1 torchrun --nproc_per_node 8 t.py --x")
    assert "srun starts CMD on 2 nodes" in line and "torchrun is configured for one" in line
    assert not said("srun -N 2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc_per_node 8 t.py --x")
    assert not said("srun -N 1 torchrun --nproc_per_node 8 t.py --x")


@pytest.mark.parametrize(
    "text", ['if [ -z "$NNODES" ]; then NNODES=2; fi', '[ -z "$NNODES" ] && NNODES=2', "NNODES=${NNODES:-2}"]
)
def test_default_of_a_script_gives_way_to_the_environment(text: str) -> None:
    command = ["bash", "-c", f"{text}\nexport NNODES\nNNODES=$NNODES swift sft --model m"]

    assert launch_facts(command, {}).nodes == 2
    assert launch_facts(command, {"NNODES": "4"}).nodes == 4


def test_words_after_the_text_of_a_shell_begin_with_its_name() -> None:
    assert launch_facts(["bash", "-c", "torchrun --nnodes $1 t.py --x", "train", "3"], {}).nodes == 3
