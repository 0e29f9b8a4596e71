"""Launch consistency: what CMD's flags and the environment say together against the devices. Real commands,
GPUs handed in."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from diag.preflight.launch import check_launch
from diag.preflight.launch_facts import cores_here, launch_facts
from diag.preflight.line import Line
from tests.preflight.test_doctor import doctor

EIGHT = tuple(f"GPU-{number:08x}" for number in range(8))
SWIFT = "megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-30B-A3B"


def lines(
    command: str,
    gpus: tuple[str, ...] | None = EIGHT,
    npus: int | None = None,
    folder: Path = Path(),
    **env: str,
) -> list[Line]:
    facts = launch_facts(shlex.split(command), env, gpus, npus, folder)
    return list(check_launch(replace(facts, cores=64.0, host="node0")))


def problems(command: str, gpus: tuple[str, ...] | None = EIGHT, **env: str) -> list[str]:
    return [line.said for line in lines(command, gpus, **env) if line.status == "problem"]


def notes(command: str, gpus: tuple[str, ...] | None = EIGHT, **env: str) -> list[str]:
    return [line.said for line in lines(command, gpus, **env) if line.status == "note"]


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (f"{SWIFT} --tensor_model_parallel_size 4 --expert_model_parallel_size 2", {"NPROC_PER_NODE": "8"}),
        (SWIFT, {"NPROC_PER_NODE": "8", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node0"}),
        (SWIFT, {"NPROC_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
        ("torchrun --nproc_per_node 8 train.py", {}),
        ("torchrun --nproc_per_node gpu train.py", {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ("torchrun train.py", {"PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_NODE_RANK": "1"}),
        ("deepspeed train.py", {"CUDA_VISIBLE_DEVICES": "2,3", "OMP_NUM_THREADS": "4"}),
        ("deepspeed --include localhost:0,1,2,3,4,5,6,7 train.py", {"OMP_NUM_THREADS": "4"}),
        (
            "accelerate launch --num_processes 16 --num_machines 2 --machine_rank 1 --main_process_ip a train.py",
            {},
        ),
        (
            "srun --ntasks-per-node=1 -N 2 torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint a:1 t.py",
            {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8"},
        ),
        # an operator's names beside flags that agree
        (
            "torchrun --nnodes 2 --node_rank 1 --master_addr a --nproc_per_node 8 train.py",
            {
                "WORLD_SIZE": "2",
                "RANK": "1",
                "MASTER_ADDR": "a",
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                "JOB_COMPLETION_INDEX": "1",
            },
        ),
        # a pod that is a rank, and says so
        ("swift sft --model m --use_cpu true", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
    ],
)
def test_launch_that_fits_gives_one_line_and_that_is_ok(command: str, env: dict[str, str]) -> None:
    assert [line.status for line in lines(command, **env)] == ["ok"]


def test_ok_line_says_what_was_compared() -> None:
    (line,) = lines(SWIFT, NPROC_PER_NODE="2", CUDA_VISIBLE_DEVICES="0,1")

    assert line.said == "2 ranks (NPROC_PER_NODE), 2 GPUs for them (CUDA_VISIBLE_DEVICES=0,1)"


def test_more_ranks_than_visible_gpus() -> None:
    (line,) = lines(SWIFT, NPROC_PER_NODE="4", CUDA_VISIBLE_DEVICES="0,1")

    assert (line.status, line.id, line.level) == ("problem", "launch-mismatch", "critical")
    assert line.said == (
        "4 ranks start on this node (NPROC_PER_NODE=4), but CUDA_VISIBLE_DEVICES=0,1 shows 2 GPUs: local rank 2 finds none "
        "(invalid device ordinal)"
    )
    assert line.remedy == "NPROC_PER_NODE=2, or 4 devices in CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        ("torchrun --nproc-per-node=4 t.py", {}, "--nproc_per_node 2"),
        ("torchrun t.py", {"PET_NPROC_PER_NODE": "4"}, "--nproc_per_node 2"),
        (
            "accelerate launch --num_processes 8 --num_machines 2 --main_process_ip a t.py",
            {},
            "--num_processes 4",
        ),
        ("deepspeed --num_gpus 4 t.py", {}, "--num_gpus 2"),
        ("deepspeed --include localhost:0,1,2,3 t.py", {}, "--num_gpus 2"),
        ("srun --ntasks-per-node=4 python t.py", {}, "srun --ntasks-per-node=2"),
    ],
)
def test_each_launcher_is_told_its_own_flag(command: str, env: dict[str, str], words: str) -> None:
    (line,) = [line for line in lines(command, EIGHT[:2], **env) if line.status == "problem"]

    assert "4 ranks start" in line.said and "2 GPUs are here" in line.said and line.remedy.startswith(words)


def test_without_gpus_to_see_nothing_is_called_wrong() -> None:
    (line,) = lines("torchrun --nproc_per_node 8 t.py", None)

    assert line.status == "not checked" and "8 ranks" in line.said and "nvidia.com/gpu" in line.remedy


def test_all_gpus_hidden() -> None:
    (said,) = problems(SWIFT, NPROC_PER_NODE="2", CUDA_VISIBLE_DEVICES="")

    assert "CUDA_VISIBLE_DEVICES= hides all 8 GPUs" in said
    assert problems(f"{SWIFT} --ddp_backend gloo", NPROC_PER_NODE="2", CUDA_VISIBLE_DEVICES="") == []


def test_variable_that_shows_fewer_than_it_names_is_told_with_what_follows() -> None:
    said = problems("torchrun --nproc_per_node 2 t.py", EIGHT[:2], CUDA_VISIBLE_DEVICES="0,5")

    assert "CUDA stops at '5'" in said[0] and "local rank 1 finds none" in said[1]


def test_plain_swift_is_one_process_on_several_gpus() -> None:
    (said,) = notes("swift rlhf --rlhf_type dpo --model m")

    assert "NPROC_PER_NODE is not set" in said and "device_map" in said and "8 GPUs" in said
    assert lines("swift rlhf --rlhf_type dpo --model m", EIGHT[:1])[0].status == "ok"


def test_swift_does_not_read_what_an_operator_set_for_torchrun() -> None:
    (said,) = problems("swift sft --model m", PET_NPROC_PER_NODE="8", PET_NNODES="1")

    assert "starts torchrun only with NPROC_PER_NODE or NNODES" in said


def test_variables_of_ms_swift_before_a_plain_torchrun() -> None:
    said = problems("torchrun t.py", NPROC_PER_NODE="8", NNODES="2")

    assert said == [
        "torchrun does not read NPROC_PER_NODE=8 and no --nproc_per_node is given: it takes one rank",
        "torchrun does not read NNODES=2 and no --nnodes is given: it takes one node",
    ]


def test_deepspeed_ignores_visible_devices_beside_a_flag() -> None:
    (said,) = problems("deepspeed --num_gpus 4 t.py", CUDA_VISIBLE_DEVICES="4,5,6,7")

    assert (
        said
        == "CUDA_VISIBLE_DEVICES=4,5,6,7 is ignored by deepspeed where --num_gpus is given: it takes GPUs 0-3"
    )


def test_hostfile_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node0 slots=16\nnode1 slots=16\n")
    (tmp_path / "broken").write_text("node0 slots=8\nnode0 slots=8\n")

    def said(command: str) -> list[str]:
        return [line.said for line in lines(command, folder=tmp_path) if line.status == "problem"]

    assert any(
        "16 ranks start on this node (slots of the hostfile), but 8 GPUs" in one
        for one in said("deepspeed -H hosts t.py")
    )
    assert any(
        "--num_nodes 3, and" in one
        for one in said("deepspeed --hostfile hosts --num_nodes 3 --num_gpus 8 t.py")
    )
    assert any(
        "--include names node7" in one for one in said("deepspeed --hostfile hosts --include node7:0,1 t.py")
    )
    assert any("names a host again" in one for one in said("deepspeed --hostfile broken t.py"))
    assert any("is not there" in one for one in said("deepspeed --hostfile nothing t.py"))


def test_config_file_of_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "c.yaml").write_text(
        "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 8\ngpu_ids: 0,1\n"
    )

    (line,) = [
        one
        for one in lines("accelerate launch --config_file c.yaml t.py", folder=tmp_path)
        if one.status == "problem"
    ]

    assert (
        "8 ranks start on this node (num_processes of its file)" in line.said
        and "--gpu_ids=0,1 shows 2 GPUs" in line.said
    )


def test_default_file_of_accelerate_is_read_as_accelerate_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text("num_machines: 1\nnum_processes: 4\n")

    assert any(
        "4 ranks start" in said
        for said in problems("accelerate launch t.py", EIGHT[:2], HF_HOME=str(tmp_path))
    )


def test_number_of_processes_of_accelerate_is_of_all_machines() -> None:
    (said,) = notes(
        "accelerate launch --num_processes 8 --num_machines 2 --machine_rank 0 --main_process_ip a t.py"
    )

    assert "counts all 2 machines: 4 ranks here" in said


def test_instances_of_mig_for_several_ranks() -> None:
    (said,) = notes("torchrun --nproc_per_node 2 t.py", EIGHT[:1], CUDA_VISIBLE_DEVICES="MIG-a,MIG-b")

    assert "one MIG instance" in said


def test_npus() -> None:
    (line,) = [
        one
        for one in lines("torchrun --nproc_per_node 4 t.py", None, 8, ASCEND_RT_VISIBLE_DEVICES="0,1")
        if one.id
    ]

    assert "ASCEND_RT_VISIBLE_DEVICES=0,1 shows 2 NPUs" in line.said
    assert [one.status for one in lines("torchrun --nproc_per_node 8 t.py", None, 8)] == ["ok"]


def test_ranks_that_slurm_gave_no_gpus_for() -> None:
    (said,) = problems("srun --ntasks-per-node=1 torchrun --nproc_per_node 8 t.py", SLURM_GPUS_ON_NODE="4")

    assert "8 ranks on this node (--nproc_per_node 8), and Slurm gave this job 4 GPUs a node" in said


def test_launchers_that_srun_starts_once_a_rank() -> None:
    (said,) = problems("srun --ntasks-per-node=8 torchrun --nproc_per_node 8 t.py")

    assert "srun starts 8 tasks on each node, and each would be a torchrun" in said


def test_more_nodes_than_slurm_gave() -> None:
    (said,) = problems(
        "srun -N 2 torchrun --nnodes 4 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint a:1 t.py",
        SLURM_NNODES="2",
    )

    assert "CMD needs 4 nodes (--nnodes), and Slurm gave this job 2" in said


@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        (SWIFT, {"NNODES": "2", "NODE_RANK": "2"}, "node rank 2 (NODE_RANK) is outside 0-1 for 2 nodes"),
        (
            "torchrun --nnodes 2 --node_rank 3 --master_addr a --nproc_per_node 8 t.py",
            {},
            "node rank 3 (--node_rank)",
        ),
        ("torchrun --nnodes 4:2 --nproc_per_node 8 t.py", {}, "at least 4 nodes, and at most 2"),
        (SWIFT, {"NNODES": "2", "JOB_COMPLETION_INDEX": "1"}, "this pod's number in its Job is 1"),
        (
            "torchrun --nnodes 2 --master_addr a --nproc_per_node 8 t.py",
            {"SLURM_NODEID": "1"},
            "this node's number in its Slurm",
        ),
    ],
)
def test_node_ranks_that_cannot_be(command: str, env: dict[str, str], words: str) -> None:
    (said,) = problems(command, **{"NPROC_PER_NODE": "8", **env} if command == SWIFT else env)

    assert words in said


def test_pods_that_a_platform_counts_and_cmd_does_not() -> None:
    env = {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "MASTER_ADDR": "job-0",
        "MASTER_PORT": "23456",
        "NPROC_PER_NODE": "8",
    }

    (line,) = [one for one in lines(SWIFT, **env) if one.status == "problem"]

    assert (
        "each node would train separately" in line.said
        and "NNODES=$WORLD_SIZE NODE_RANK=$RANK" in line.remedy
    )
    assert problems(SWIFT, **env, NNODES="2", NODE_RANK="1") == []
    # a script's own count of ranks
    assert problems(SWIFT, **{**env, "WORLD_SIZE": "8", "RANK": "0", "MASTER_ADDR": "node0"}) == []
    assert problems("torchrun --nproc_per_node 8 t.py", WORLD_SIZE="8", MASTER_ADDR="node0") == []


def test_rank_left_in_the_environment() -> None:
    left = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "none",
    }

    (said,) = problems("python train.py", EIGHT[:1], **left)

    assert "are left in the environment from another job: it would wait for 3 others" in said
    # it gives its ranks their own
    assert problems("torchrun --nproc_per_node 1 train.py", EIGHT[:1], **left) == []
    # by hand, and on purpose
    assert problems("env RANK=0 WORLD_SIZE=2 MASTER_ADDR=a python train.py", EIGHT[:1]) == []


@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        (
            f"{SWIFT} --tensor_model_parallel_size 2 --pipeline_model_parallel_size 2",
            {"NPROC_PER_NODE": "6"},
            "6 ranks cannot be divided into groups of TP 2 x PP 2 = 4",
        ),
        (
            f"{SWIFT} --tensor_model_parallel_size 2",
            {},
            "1 rank (NPROC_PER_NODE is not set) cannot be divided into groups of TP 2",
        ),
        (
            f"{SWIFT} --context_parallel_size 3",
            {"NPROC_PER_NODE": "8", "NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "a"},
            "16 ranks (8 on each of 2 nodes) cannot be divided into groups of CP 3",
        ),
        (
            f"{SWIFT} --expert_model_parallel_size 3",
            {"NPROC_PER_NODE": "8"},
            "groups of EP 3 x ETP 1 x PP 1 = 3",
        ),
        (
            f"{SWIFT} --global_batch_size 12",
            {"NPROC_PER_NODE": "8"},
            "--global_batch_size 12 is not a multiple of",
        ),
        (
            "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 16",
            {},
            "groups of TP 16",
        ),
        (
            "swift sft --model m --sequence_parallel_size 3",
            {"NPROC_PER_NODE": "8"},
            "--sequence_parallel_size 3",
        ),
        (
            f"{SWIFT} --tensor_model_parallel_size two",
            {"NPROC_PER_NODE": "8"},
            "--tensor_model_parallel_size is 'two'",
        ),
    ],
)
def test_layouts_that_the_world_size_does_not_allow(command: str, env: dict[str, str], words: str) -> None:
    said = problems(command, **env)

    assert any(words in one for one in said)


def test_tensor_parallelism_across_nodes_is_a_note() -> None:
    (said,) = notes(
        f"{SWIFT} --tensor_model_parallel_size 16",
        NPROC_PER_NODE="8",
        NNODES="2",
        NODE_RANK="0",
        MASTER_ADDR="a",
    )

    assert "TP 16 does not fit into the 8 ranks of a node" in said


def test_threads_of_all_ranks_against_the_cores() -> None:
    facts = replace(
        launch_facts(shlex.split("torchrun --nproc_per_node 8 t.py"), {"OMP_NUM_THREADS": "16"}, EIGHT),
        cores=32.0,
    )
    few = replace(facts, cores=4.0)

    (note,) = [line for line in check_launch(facts) if line.status == "note"]
    (fewer,) = [line for line in check_launch(few) if line.status == "note"]

    assert (
        "OMP_NUM_THREADS=16 x 8 ranks = 128 threads for 32 cores" in note.said
        and note.remedy == "OMP_NUM_THREADS=4"
    )
    assert "8 ranks on this node, and it has 4 cores" in fewer.said


def test_cores_are_those_of_the_affinity_or_fewer() -> None:
    import os

    cores = cores_here()

    assert cores is not None and 0 < cores <= len(os.sched_getaffinity(0))


def test_command_that_cannot_be_read_is_said() -> None:
    (line,) = lines("python -c pass")

    assert line.status == "not checked" and "CMD could not be read" in line.said


def test_doctor_says_it_of_the_command_and_exits_with_10() -> None:
    document, code = doctor("--", "env", "CUDA_VISIBLE_DEVICES=0,1", "NPROC_PER_NODE=4", *shlex.split(SWIFT))

    (found,) = [
        one
        for one in document["findings"]
        if one["id"] == "launch-mismatch" and one["severity"] == "critical"
    ]
    assert "CUDA_VISIBLE_DEVICES=0,1 shows 2 GPUs" in found["summary"] and code == 10


@pytest.mark.parametrize(
    "text",
    [
        "NNODES=2\ntorchrun --nnodes $NNODES --nproc_per_node 4 --master_addr a t.py",
        "NNODES=2\nNPROC_PER_NODE=4 NNODES=$NNODES MASTER_ADDR=a swift sft --model m",
        "NNODES=2 NPROC_PER_NODE=4\nexport NNODES NPROC_PER_NODE MASTER_ADDR=a\nswift sft --model m",
        "set -a\nNNODES=2\nset +a\nexport MASTER_ADDR=a\nNPROC_PER_NODE=4 swift sft --model m",
        "LR=1\nNPROC_PER_NODE=4 swift sft --model m --learning_rate $LR",
    ],
)
def test_what_a_script_hands_on_by_itself_needs_no_export(text: str) -> None:
    lines = check_launch(launch_facts(["bash", "-c", text], {}, tuple("abcd")))

    assert not [line for line in lines if "export" in line.said]


def test_a_variable_without_export_is_said_to_reach_no_program() -> None:
    text = "NNODES=2\nNCCL_DEBUG=INFO\nNPROC_PER_NODE=4 swift sft --model m"

    lines = check_launch(launch_facts(["bash", "-c", text], {}, tuple("abcd")))

    (line,) = [line for line in lines if line.status == "problem"]
    assert line.said == "the script sets NNODES=2, NCCL_DEBUG=INFO without export, so swift does not see it"
    assert line.remedy == "export NNODES NCCL_DEBUG"
