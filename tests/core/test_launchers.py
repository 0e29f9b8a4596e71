"""Who am I, by the environment that each launcher gives; captured with the launchers named, or from their
sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.launch.launchers import Identity, identify, launches, relevant

# torchrun of torch 2.13.0, 2 ranks, 2026-11-21
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "ROLE_RANK": "3",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}
# deepspeed 0.18, deepspeed/launcher/launch.py
DEEPSPEED = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_SIZE": "4",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
# Slurm 23.11: the batch script, a task of `srun`, and both with one task a node
SLURM_BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NUM_NODES": "2",
}
SLURM_STEP = {
    **SLURM_BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
}
# Open MPI 4.1 and 5.0
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "5",
    "PMIX_NAMESPACE": "x",
}
# Intel MPI and MPICH's hydra
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
# accelerate 1.x starts torchrun's agent; its ranks have torchrun's variables and these
ACCELERATE = {**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}


@pytest.mark.parametrize(
    ("env", "identity"),
    [
        (TORCHRUN, Identity(3, 1, 4, "torchrun", 1, 2)),
        (ACCELERATE, Identity(3, 1, 4, "torchrun", 1, 2)),
        (DEEPSPEED, Identity(5, 1, 8, "deepspeed", 1, 4)),
        (SLURM_STEP, Identity(5, 1, 8, "slurm", 1)),
        (OPENMPI, Identity(5, 1, 8, "openmpi", 1, 4)),
        (HYDRA, Identity(5, 1, 8, "pmi")),
        ({"RANK": "0", "LOCAL_RANK": "0"}, Identity(0, 0, 1, "env")),
        ({"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4"}, Identity(2, 2, 4, "env")),
        # srun torchrun: the rank has both, torchrun's win
        ({**SLURM_STEP, **TORCHRUN}, Identity(3, 1, 4, "torchrun", 1, 2)),
        ({**OPENMPI, **TORCHRUN}, Identity(3, 1, 4, "torchrun", 1, 2)),
    ],
)
def test_rank_is_read_from_its_launchers_variables(env: dict[str, str], identity: Identity) -> None:
    assert identify(env) == identity


@pytest.mark.parametrize(
    "env",
    [
        {},
        {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "PET_NNODES": "2",
            "MASTER_ADDR": "job-master-0",
        },  # Kubeflow: RANK is the node's
        {"LOCAL_RANK": "0"},
        SLURM_BATCH,
        {**SLURM_STEP, "SLURM_NTASKS": "1"},
        {"RANK": "x", "LOCAL_RANK": "0"},
        {"RANK": "-1", "LOCAL_RANK": "0"},
        {"RANK": "9" * 30, "LOCAL_RANK": "0"},
        {"RANK": "", "LOCAL_RANK": ""},
    ],
)
def test_process_that_is_no_rank_is_none(env: dict[str, str]) -> None:
    assert identify(env) is None


@given(
    st.dictionaries(
        st.sampled_from(sorted({**TORCHRUN, **SLURM_STEP, **OPENMPI, **HYDRA, **DEEPSPEED})),
        st.text(max_size=12),
    )
)
def test_any_values_are_no_error(env: dict[str, str]) -> None:
    identify(env)
    relevant(env)


@pytest.mark.parametrize(
    ("command", "is_launcher"),
    [
        ("/usr/local/bin/python3 /usr/local/bin/torchrun --nproc_per_node 2 train.py", True),
        ("/usr/local/bin/python3 -m torch.distributed.run --nproc_per_node 2 /opt/swift/cli/rlhf.py", True),
        ("/usr/local/bin/python3 -u -m deepspeed.launcher.launch --world_info=e30= train.py", True),
        ("/usr/local/bin/python3 /usr/local/bin/accelerate launch --num_processes 2 train.py", True),
        ("/usr/local/bin/python3 /usr/local/bin/swift rlhf --rlhf_type dpo", True),
        ("/usr/local/bin/python3 -X faulthandler -W ignore /usr/local/bin/megatron rlhf", True),
        ("torchrun train.py", True),
        ("/usr/local/bin/python3 -u /opt/swift/cli/rlhf.py --rlhf_type dpo", False),
        ("python -m train --launcher torchrun", False),
        ("python -c torchrun", False),
        ("python train.py torchrun", False),
        ("bash torchrun", False),
        ("python", False),
        ("", False),
    ],
)
def test_launchers_own_process_is_known_by_its_command_line(command: str, is_launcher: bool) -> None:
    assert launches(command.split(" ")) is is_launcher


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "MODELSCOPE_API_TOKEN",
        "OPENAI_API_KEY",
        "PATH",
        "HOME",
        "MYSQL_PASSWORD",
        "SLURM_JWT",
        "NCCL_AUTH_TOKEN",
        "UCX_SECRET",
        "SLURM_DB_PASS",
        "PET_RDZV_PASSWORD",
        "NCCL_plugin_token",
        "CUDA_LICENSE_KEY",
        "SLURM_SPANK_APIKEY",
        "TORCHELASTIC_CREDENTIALS",
    ],
)
def test_secret_is_never_among_what_is_kept(name: str) -> None:
    assert relevant({name: "hunter2", "RANK": "0"}) == {"RANK": "0"}


def test_what_diagnosis_needs_is_kept_and_long_values_are_cut() -> None:
    env = {
        "NCCL_SOCKET_IFNAME": "ib0",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "RANK": "0",
        "SLURM_NODELIST": "n" * 5000,
    }

    kept = relevant(env)

    assert {name: value for name, value in kept.items() if name != "SLURM_NODELIST"} == {
        name: value for name, value in env.items() if name != "SLURM_NODELIST"
    }
    assert kept["SLURM_NODELIST"] == "n" * 1000


def test_actor_of_verl_is_known_by_rays_local_rank() -> None:
    """verl 0.4, single_controller/ray/base.py: these go into the actor's runtime environment."""
    env = {"RANK": "9", "WORLD_SIZE": "16", "RAY_LOCAL_RANK": "1", "RAY_LOCAL_WORLD_SIZE": "8"}

    assert identify(env) == Identity(9, 1, 16, "ray", 0, 8)
    assert identify({"RAY_LOCAL_RANK": "1"}) is None
