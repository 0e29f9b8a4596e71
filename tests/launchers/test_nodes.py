"""Who the nodes are, by launcher: torchrun, ms-swift, accelerate, Slurm, and a rank's own environment."""

from __future__ import annotations

import pytest

from diag.launch.launchers.nodes import JobNodes, nodes_of, nodes_of_rank


def of(words: str, env: dict[str, str], given: str = "auto", files: dict[str, str] | None = None) -> JobNodes:
    return nodes_of(words.split(), env, given, read_text=(files or {}).get)


SWIFT = {
    "NNODES": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29501",
    "NPROC_PER_NODE": "8",
}
# Slurm 21.08, `env | grep SLURM` in a batch script of four nodes (public gist jerinphilip/212b38); the step's
# are those that step_ctx.c and env.c of 22.05 add for `srun -N4`.
BATCH = {
    "SLURM_JOB_ID": "200505", "SLURM_JOBID": "200505", "SLURM_NODELIST": "gnode[10,20,25,37]", "SLURM_NNODES": "4",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "1(x4)", "SLURMD_NODENAME": "gnode10",
}  # fmt: skip
STEP = BATCH | {
    "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NODELIST": "gnode[10,20,25,37]", "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "2", "SLURM_PROCID": "2", "SLURMD_NODENAME": "gnode25",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.10",
}  # fmt: skip
FOUR = ("gnode10", "gnode20", "gnode25", "gnode37")
# the second of two steps that share an allocation of four nodes
HALF = STEP | {
    "SLURM_STEP_NODELIST": "gnode[25,37]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
}


# the shell of `salloc` with LaunchParameters=use_interactive_step is a step of the first node (slurm.h:
# SLURM_INTERACTIVE_STEP)
INTERACTIVE = BATCH | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "gnode10",
    "SLURM_STEP_NUM_NODES": "1",
}


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ("torchrun --nproc_per_node 8 t.py", {}, (1, 0, None, None, "torchrun")),
        ("torchrun --nnodes 2 --node_rank 1 --master_addr a --master_port 12 t.py", {}, (2, 1, "a", 12, "torchrun")),
        ("python -m torch.distributed.run --nnodes 2 --master_addr a t.py", {}, (2, 0, "a", 29500, "torchrun")),
        ("torchrun --nnodes 1:4 --rdzv_backend c10d --rdzv_endpoint a t.py", {}, (4, None, "a", 29400, "torchrun")),
        ("torchrun --nnodes 2 --master_addr [fd00::1] t.py", {}, (2, 0, "fd00::1", 29500, "torchrun")),
        ("torchrun t.py", SWIFT, (1, 0, None, None, "torchrun")),  # it reads none of them
        ("megatron rlhf --rlhf_type dpo", SWIFT, (2, 1, "node0", 29501, "swift")),
        ("env NODE_RANK=0 swift sft", SWIFT, (2, 0, "node0", 29501, "swift")),
        ("accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip a", {}, (2, 1, "a", 29500, "accelerate")),
        ("bash train.sh", SWIFT, (2, 1, "node0", 29501, "")),
        ("python t.py", {}, (1, 0, None, None, "")),
        ("", {}, (1, 0, None, None, "")),
        # under Slurm
        ("python t.py", STEP, (4, 2, "gnode10", None, "slurm")),
        ("python t.py", STEP | {"MASTER_ADDR": "gnode10.x", "MASTER_PORT": "5"}, (4, 2, "gnode10.x", 5, "slurm")),
        ("torchrun --nnodes 4 --rdzv_backend c10d --rdzv_endpoint gnode10:5 t.py", STEP, (4, 2, "gnode10", 5, "slurm")),
        ("torchrun --nnodes 2 --node_rank 1 --master_addr a t.py", STEP, (2, 1, "a", 29500, "slurm")),  # --nnodes wins
        ("torchrun --standalone --nproc_per_node 8 t.py", STEP, (1, 0, None, None, "slurm")),
        ("swift sft", STEP | SWIFT, (2, 1, "node0", 29501, "slurm")),
        ("python t.py", HALF, (2, 1, "gnode25", None, "slurm")),
        ("python t.py", HALF | {"SLURM_NNODES": "4"}, (2, 1, "gnode25", None, "slurm")),
        ("srun python t.py", BATCH, (4, 0, "gnode10", None, "slurm")),
        ("srun -N 2 python t.py", BATCH, (2, 0, None, None, "slurm")),
        ("srun python t.py -N 2", BATCH, (4, 0, "gnode10", None, "slurm")),
        ("srun --nodes=2-4 -n 8 python t.py", BATCH, (4, 0, "gnode10", None, "slurm")),
        ("srun python t.py", INTERACTIVE, (4, 0, "gnode10", None, "slurm")),
        ("bash train.sh", INTERACTIVE, (4, 0, "gnode10", None, "slurm")),
        ("python t.py", INTERACTIVE, (1, 0, None, None, "slurm")),
        ("bash train.sh", BATCH, (4, 0, "gnode10", None, "slurm")),
        ("python t.py", BATCH, (1, 0, None, None, "slurm")),  # no srun: nothing leaves the first node
    ],
)  # fmt: skip
def test_nodes_of_command(
    words: str, env: dict[str, str], expected: tuple[int, int | None, str | None, int | None, str]
) -> None:
    found = of(words, env)

    assert (found.count, found.node_rank, found.address, found.port, found.launcher) == expected
    assert found.bad == ()


@pytest.mark.parametrize(
    ("words", "env", "hosts", "who"),
    [
        ("python t.py", STEP, FOUR, "SLURM_STEP_NODELIST"),
        ("srun python t.py", BATCH, FOUR, "SLURM_JOB_NODELIST"),
        ("python t.py", HALF, ("gnode25", "gnode37"), "SLURM_STEP_NODELIST"),
        (
            "torchrun --nnodes 4 --rdzv_backend c10d --rdzv_endpoint gnode20:5 t.py",
            STEP,
            FOUR,
            "SLURM_STEP_NODELIST",
        ),
        ("torchrun --nnodes 4 --node_rank 2 --master_addr gnode10 t.py", STEP, FOUR, "SLURM_STEP_NODELIST"),
        # not the list of those that train, or not in their order
        ("torchrun --nnodes 2 --node_rank 1 --master_addr gnode10 t.py", STEP, (), ""),
        ("torchrun --nnodes 4 --node_rank 3 --master_addr gnode10 t.py", STEP, (), ""),
        ("torchrun --nnodes 4 --node_rank 2 --master_addr gnode37 t.py", STEP, (), ""),
        ("python t.py", {name: value for name, value in STEP.items() if "NODELIST" not in name}, (), ""),
        ("torchrun --nnodes 2 --node_rank 1 --master_addr a t.py", {}, (), ""),
    ],
)
def test_hosts_are_named_where_the_list_is_surely_that_of_the_nodes(
    words: str, env: dict[str, str], hosts: tuple[str, ...], who: str
) -> None:
    found = of(words, env)

    assert found.hosts == hosts
    assert dict(found.origins).get("hosts", "") == who


# accelerate 1.15: what `accelerate config` writes for a node of two
ACCELERATE = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmachine_rank: 0\nmain_process_ip: 10.0.0.1\n"
    "main_process_port: 29501\nnum_machines: 2\nnum_processes: 16\nrdzv_backend: static\nsame_network: true\n"
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("accelerate launch --config_file /c --machine_rank 1 t.py", (2, 1, "10.0.0.1", 29501)),
        ("accelerate launch --config_file=/c --main_process_ip b t.py", (2, 0, "b", 29501)),
        ("accelerate launch t.py", (2, 0, "10.0.0.1", 29501)),  # the default file
        ("accelerate launch --config_file /none t.py", (1, 0, None, None)),
        ("accelerate launch --config_file /broken t.py", (1, 0, None, None)),
        ("torchrun t.py --config_file /c", (1, 0, None, None)),
    ],
)
def test_accelerates_config_file_tells_what_its_flags_leave_out(
    words: str, expected: tuple[int, int | None, str | None, int | None]
) -> None:
    default = "/home/u/.cache/huggingface/accelerate/default_config.yaml"

    found = of(
        words, {"HOME": "/home/u"}, files={"/c": ACCELERATE, default: ACCELERATE, "/broken": "a: [b\n- {"}
    )

    assert (found.count, found.node_rank, found.address, found.port) == expected


def test_config_file_of_accelerate_is_named_as_the_one_who_told() -> None:
    told = dict(
        of("accelerate launch --config_file /c --machine_rank 1 t.py", {}, files={"/c": ACCELERATE}).origins
    )

    assert (told["count"], told["node_rank"]) == ("--num_machines of /c", "--machine_rank")


def test_who_told_what_is_kept() -> None:
    found = of("torchrun --nnodes 4 --rdzv_id run7 --rdzv_backend c10d --rdzv_endpoint gnode10:5 t.py", STEP)

    assert found.origins == (
        ("count", "--nnodes"),
        ("node_rank", "SLURM_NODEID"),
        ("address", "--rdzv_endpoint"),
        ("port", "--rdzv_endpoint"),
        ("hosts", "SLURM_STEP_NODELIST"),
    )


@pytest.mark.parametrize(
    ("words", "env", "job"),
    [
        ("python t.py", STEP, "200505"),
        ("torchrun --rdzv_id run7 t.py", STEP, "200505"),
        ("torchrun --rdzv_id run7 t.py", {}, "run7"),
        ("torchrun --rdzv-id=run8 t.py", {}, "run8"),
        ("torchrun t.py", {"PET_RDZV_ID": "run9"}, "run9"),
        ("torchrun t.py", {"PET_RDZV_ID": "none"}, ""),
        ("swift sft", {}, ""),
    ],
)
def test_job_is_called_by_its_engine(words: str, env: dict[str, str], job: str) -> None:
    assert of(words, env).job == job


@pytest.mark.parametrize(
    ("changed", "bad"),
    [
        ({"SLURM_STEP_NODELIST": "gpu[1-"}, ("SLURM_STEP_NODELIST='gpu[1-'",)),
        ({"SLURM_STEP_NODELIST": "n[1-99999999]"}, ("SLURM_STEP_NODELIST='n[1-99999999]'",)),
        ({"SLURM_NODEID": "7"}, ("SLURM_NODEID='7'",)),
    ],
)
def test_what_cannot_be_read_is_told_and_not_taken(changed: dict[str, str], bad: tuple[str, ...]) -> None:
    found = of("python t.py", STEP | changed)

    assert found.bad == bad
    assert found.count == 4
    assert not found.hosts or found.node_rank is None


def test_off_is_a_job_of_this_node_alone_that_keeps_its_name() -> None:
    found = of("python t.py", STEP, "off")

    assert (found.count, found.address, found.hosts, found.job) == (1, None, (), "200505")


# torch 2.13, torch/distributed/elastic/agent/server/local_elastic_agent.py; these names were seen in the
# ranks of two agents
RANK = {
    "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "9", "ROLE_WORLD_SIZE": "16", "ROLE_NAME": "default", "MASTER_ADDR": "node0", "MASTER_PORT": "29501",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
}  # fmt: skip
# srun's task that is a rank itself
TASK = STEP | {"SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "32", "SLURM_PROCID": "19", "SLURM_LOCALID": "3"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (RANK, (2, 1, "node0", 29501, "torchrun", "")),
        ({**RANK, "TORCHELASTIC_RUN_ID": "x7"}, (2, 1, "node0", 29501, "torchrun", "x7")),
        ({name: value for name, value in RANK.items() if name != "GROUP_WORLD_SIZE"}, (2, 1, "node0", 29501, "torchrun", "")),
        # deepspeed/launcher/launch.py
        (
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2",
             "MASTER_ADDR": "w0", "MASTER_PORT": "29500"},
            (2, 1, "w0", 29500, "deepspeed", ""),
        ),
        (TASK | {"MASTER_ADDR": "gnode10"}, (4, 2, "gnode10", None, "slurm", "200505")),
        # torchrun's ranks below srun keep the task's variables; theirs are torchrun's
        (STEP | RANK | {"GROUP_WORLD_SIZE": "4", "GROUP_RANK": "2", "WORLD_SIZE": "32"},
         (4, 2, "node0", 29501, "slurm", "200505")),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, (1, 0, None, None, "", "")),
        # sizes that do not divide tell nothing
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}, (1, 0, None, None, "", "")),
    ],
)  # fmt: skip
def test_nodes_by_a_ranks_environment(
    env: dict[str, str], expected: tuple[int, int | None, str | None, int | None, str, str]
) -> None:
    found = nodes_of_rank(env)

    assert found is not None
    assert (found.count, found.node_rank, found.address, found.port, found.launcher, found.job) == expected


def test_rank_under_slurm_knows_the_hosts() -> None:
    found = nodes_of_rank(TASK)

    assert found is not None
    assert found.hosts == FOUR
    assert found.address == "gnode10"


def test_rank_whose_group_is_numbered_in_another_way_than_slurms_nodes_names_no_hosts() -> None:
    found = nodes_of_rank(STEP | RANK | {"GROUP_WORLD_SIZE": "4", "GROUP_RANK": "3", "WORLD_SIZE": "32"})

    assert found is not None
    assert (found.count, found.node_rank, found.hosts) == (4, 3, ())


@pytest.mark.parametrize("env", [{}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "j-master-0"}, BATCH])
def test_process_that_is_no_rank_tells_nothing(env: dict[str, str]) -> None:
    assert nodes_of_rank(env) is None
