"""Start scripts as people had them: what `diag doctor -- CMD` says of each, and that it is the same however CMD is
wrapped."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from diag.launch.launchers.command import Command, read_command
from diag.preflight.launch import check_launch
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.manifest.job import Manifests
from diag.preflight.manifest.reading import read_text
from tests.mission.cases import Case

FLAGS = "--model Qwen/Qwen2.5-72B-Instruct --deepspeed zero3 --output_dir /srv/out"
SRUN = (
    "srun -N2 -n16 python train.py",
    "srun -N 2 --ntasks-per-node 8 python train.py",
    "srun -n 16 python train.py",
)
GPUS = tuple(f"GPU-{number}" for number in range(4))

SCRIPTS = {
    "exports": f"""\
#!/bin/bash
# two machines, 'node 1' of them; don't start on one
export NNODES=2 NODE_RANK=1
export MASTER_ADDR=192.0.2.10
NPROC_PER_NODE=2 \\
CUDA_VISIBLE_DEVICES=0,1 \\
swift sft {FLAGS}
""",
    "no export": f"""\
NNODES=2
NODE_RANK=1
MASTER_ADDR=192.0.2.10
NPROC_PER_NODE=4
swift sft {FLAGS}
""",
    "counted GPUs": f"""\
export NNODES=2 NODE_RANK=1 MASTER_ADDR=192.0.2.10
NPROC_PER_NODE=$(nvidia-smi -L | wc -l) swift sft {FLAGS}
""",
    "env": f"env NNODES=2 NODE_RANK=1 NPROC_PER_NODE=4 MASTER_ADDR=192.0.2.10 swift sft {FLAGS}\n",
    "case": f"""\
case $(hostname) in
  gpu-a) NODE_RANK=0; NNODES=2 ;;
  *) NODE_RANK=1; NNODES=2 ;;
esac
export NODE_RANK NNODES MASTER_ADDR=192.0.2.10 NPROC_PER_NODE=4
swift sft {FLAGS}
""",
    "another file": f"source cluster.env\nNPROC_PER_NODE=4 swift sft {FLAGS}\n",
    "here-document": f"""\
cat > other.sh <<'EOF'
NNODES=8 NPROC_PER_NODE=8 swift sft {FLAGS}
EOF
NNODES=2 NODE_RANK=1 NPROC_PER_NODE=4 MASTER_ADDR=192.0.2.10 swift sft {FLAGS}
""",
    "Ascend": f"""\
source /usr/local/Ascend/ascend-toolkit/set_env.sh
if [ -z "${{RANK}}" ]; then
  NODE_RANK=0
else
  NODE_RANK=${{RANK}}
fi
ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 NNODES=32 NODE_RANK=$NODE_RANK NPROC_PER_NODE=8 swift sft {FLAGS}
""",
}


def launch_lines(words: list[str], environment: dict[str, str] | None = None) -> list[str]:
    """Of the line `launch`, on a node with four GPUs."""
    env = environment or {}
    lines = check_launch(LaunchFacts(read_command(words, env), env, GPUS, cores=64.0))
    return [f"{line.status}: {line.said} -> {line.remedy}" for line in lines]


def case(rows: tuple[int, ...], had: str, words: list[str], told: str, silent: tuple[str, ...] = ()) -> Case:
    command = "diag doctor -- " + ("bash train.sh" if words[0] == "bash" else " ".join(words))
    return Case(rows, had, command, functools.partial(launch_lines, words), (told,), silent)


def script(name: str) -> list[str]:
    return ["bash", "-c", SCRIPTS[name]]


CASES = {
    "exports": case(
        (8,), "two nodes exported, two ranks in front of `swift`, four GPUs here", script("exports"),
        "ok: 2 ranks on each of 2 nodes, 4 in all (NPROC_PER_NODE), 2 GPUs for them (CUDA_VISIBLE_DEVICES=0,1)",
    ),
    "no export": case(
        (8,), "NNODES, NODE_RANK, MASTER_ADDR and NPROC_PER_NODE set in the script without export", script("no export"),
        "the script sets NNODES=2, NODE_RANK=1, MASTER_ADDR=192.0.2.10, NPROC_PER_NODE=4 without export, so swift does not see it",
        ("ok:",),
    ),
    "counted GPUs": case(
        (8,), "NPROC_PER_NODE=$(nvidia-smi -L \\| wc -l)", script("counted GPUs"),
        "not checked: CMD could not be read: NPROC_PER_NODE is $(nvidia-smi -L | wc -l): only the shell that starts it knows how many",
        ("ok:",),
    ),
    "another file": case(
        (6, 8), "a script that sources cluster.env, which is not there", script("another file"),
        "how many nodes there are is not known: `source cluster.env` in the script may set it", ("ok:",),
    ),
    "srun, one word": case(
        (8, 18), "two nodes, 16 tasks", SRUN[0].split(),
        "8 ranks start on this node (srun's tasks a node), but 4 GPUs are here: local rank 4 finds none", ("16 ranks",),
    ),
    "srun, tasks of a node": case(
        (8, 18), "two nodes, 8 tasks each", SRUN[1].split(),
        "8 ranks start on this node (srun's tasks a node), but 4 GPUs are here: local rank 4 finds none", ("16 ranks",),
    ),
    "srun, nodes not given": case(
        (8, 18), "16 tasks, on nodes that Slurm chooses", SRUN[2].split(),
        "not checked: an unknown number of ranks", ("ok:",),
    ),
    "Ascend": case(
        (8, 19), "32 nodes with 8 NPUs each, the node's number from RANK", script("Ascend"),
        "ok: 8 ranks on each of 32 nodes, 256 in all (NPROC_PER_NODE), 8 NPUs for them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


def pod(text: str) -> Command:
    """As the arguments of a container."""
    spec = {
        "containers": [
            {"name": "t", "args": ["bash", "-c", text], "resources": {"limits": {"nvidia.com/gpu": 4}}}
        ]
    }
    document = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {**spec, "restartPolicy": "Never"}}
    documents, _ = read_text(yaml.safe_dump(document), "pod.yaml")
    (job,) = Manifests.of(documents).jobs
    return job.trainers[0].facts.command


def ways(text: str, folder: Path) -> Iterator[Command]:
    file = folder / "train.sh"
    file.write_text(text)
    yield read_command(["bash", str(file)], {})
    yield read_command(["bash", "-c", text], {})
    yield read_command(
        [
            "docker",
            "run",
            "--rm",
            "image",
            "bash",
            "-c",
            f"cd /app && {text.partition('!/bin/bash')[2] or text}",
        ],
        {},
    )
    yield read_command(
        ["docker", "run", "--rm", "-v", f"{folder}:/app", "image", "bash", "-c", "cd /app && bash train.sh"],
        {},
    )
    yield pod(text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_the_same_however_it_is_handed_over(name: str, tmp_path: Path) -> None:
    first, *others = ways(SCRIPTS[name], tmp_path)

    for other in others:
        assert (other.launcher, other.processes, other.meeting.nodes) == (
            first.launcher,
            first.processes,
            first.meeting.nodes,
        )
        assert other.meeting.address == first.meeting.address or not first.meeting.address
        assert bool(other.unread) == bool(first.unread)


@pytest.mark.parametrize("name", ["exports", "env", "here-document", "counted GPUs"])
def test_two_nodes_are_never_taken_for_one(name: str) -> None:
    found = read_command(script(name), {})

    assert found.meeting.nodes == 2 and found.meeting.nodes_from


@pytest.mark.parametrize("name", ["case", "another file"])
def test_what_is_not_known_is_not_taken_for_one_node(name: str) -> None:
    assert read_command(script(name), {}).unsure


def test_what_the_script_exports_comes_before_the_environment() -> None:
    found = read_command(
        script("exports"), {"NNODES": "8", "NPROC_PER_NODE": "8", "MASTER_ADDR": "elsewhere"}
    )

    assert (found.meeting.nodes, found.processes, found.meeting.address) == (2, 2, "192.0.2.10")


def test_a_variable_of_the_environment_stays_exported() -> None:
    found = read_command(
        script("no export"), {"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "", "NPROC_PER_NODE": "1"}
    )

    assert (found.meeting.nodes, found.processes, found.kept_back) == (2, 4, {})
