"""Pods as nodes. Nothing here ran on Kubernetes: the environments are as the operators' sources
(kubernetes.py) build them."""

from __future__ import annotations

import pytest

from diag.launch.launchers.nodes import nodes_of, nodes_of_rank

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
SWIFT = {"NNODES": "3", "NPROC_PER_NODE": "8", "MASTER_PORT": "29500"}
INDEXED = IN_POD | SWIFT | {
    "MASTER_ADDR": "dpo-0.dpo", "NODE_RANK": "2", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "dpo-2",
}  # fmt: skip
JOBSET = IN_POD | SWIFT | {
    "MASTER_ADDR": "dpo-node-0-0.dpo", "NODE_RANK": "2", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "dpo-node-0-2",
}  # fmt: skip
SLICES = JOBSET | {"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "dpo-node-2-0"}  # three Jobs of one pod each
TRAINJOB = IN_POD | {
    "PET_NNODES": "3", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "dpo-node-0-0.dpo",
    "PET_MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "dpo-node-0-0",
}  # fmt: skip
OLD_PYTORCHJOB = IN_POD | {  # training-operator 1.5: RANK and WORLD_SIZE count pods
    "PYTHONUNBUFFERED": "0", "MASTER_PORT": "23456", "MASTER_ADDR": "dpo-master-0", "WORLD_SIZE": "3", "RANK": "1",
    "HOSTNAME": "dpo-worker-0",
}  # fmt: skip
PYTORCHJOB = OLD_PYTORCHJOB | {
    "WORLD_SIZE": "24", "PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "dpo-master-0",
    "PET_MASTER_PORT": "23456",
}  # fmt: skip
ELASTIC = IN_POD | {
    "PET_RDZV_ENDPOINT": "dpo-worker-0:23456", "PET_RDZV_BACKEND": "c10d", "PET_NNODES": "1:3", "HOSTNAME": "dpo-worker-1",
}  # fmt: skip
VOLCANO = IN_POD | {
    "VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1", "VC_MASTER_HOSTS": "dpo-master-0.dpo", "VC_MASTER_NUM": "1",
    "VC_WORKER_HOSTS": "dpo-worker-0.dpo,dpo-worker-1.dpo", "VC_WORKER_NUM": "2", "MASTER_ADDR": "dpo-master-0.dpo",
    "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "2", "HOSTNAME": "dpo-worker-1",
}  # fmt: skip
VOLCANO_TASK = IN_POD | {  # one task of three pods, without the pytorch plugin
    "VC_TASK_INDEX": "1", "VC_TRAIN_HOSTS": "dpo-train-0.dpo,dpo-train-1.dpo,dpo-train-2.dpo", "VC_TRAIN_NUM": "3",
}  # fmt: skip
PODS = IN_POD | SWIFT | {"MASTER_ADDR": "dpo-0.dpo", "NODE_RANK": "1", "HOSTNAME": "dpo-1"}

DPO = ("dpo-0.dpo", "dpo-1.dpo", "dpo-2.dpo")
BY_POD = ("dpo-node-0-0.dpo", "dpo-node-0-1.dpo", "dpo-node-0-2.dpo")
BY_JOB = ("dpo-node-0-0.dpo", "dpo-node-1-0.dpo", "dpo-node-2-0.dpo")
MASTER = ("dpo-master-0", "dpo-worker-0", "dpo-worker-1")
WITH_MASTER = "torchrun --nnodes 3 --node_rank 1 --master_addr dpo-master-0 t.py"


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ("swift sft", INDEXED, (3, 2, "dpo-0.dpo", "kubernetes-indexed-job", "dpo", DPO)),
        ("swift sft", INDEXED | {"NODE_RANK": "0", "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "dpo-0"},
         (3, 0, "dpo-0.dpo", "kubernetes-indexed-job", "dpo", DPO)),
        ("torchrun --nnodes 3 --rdzv_backend c10d --rdzv_endpoint dpo-0.dpo:29400 t.py", INDEXED,
         (3, 2, "dpo-0.dpo", "kubernetes-indexed-job", "dpo", DPO)),
        ("bash train.sh", {k: v for k, v in INDEXED.items() if k != "NODE_RANK"},
         (3, 2, "dpo-0.dpo", "kubernetes-indexed-job", "dpo", DPO)),
        ("swift sft", JOBSET, (3, 2, "dpo-node-0-0.dpo", "jobset", "dpo", BY_POD)),
        ("swift sft", SLICES, (3, 2, "dpo-node-0-0.dpo", "jobset", "dpo", BY_JOB)),
        ("torchrun --nnodes 3 --rdzv_backend c10d --rdzv_endpoint dpo-node-0-0.dpo:1 t.py", JOBSET,
         (3, 2, "dpo-node-0-0.dpo", "jobset", "dpo", BY_POD)),
        ("torchrun t.py", TRAINJOB, (3, 0, "dpo-node-0-0.dpo", "kubeflow-trainjob", "dpo", BY_POD)),
        ("bash train.sh", TRAINJOB | {"PET_NODE_RANK": "2"}, (3, 2, "dpo-node-0-0.dpo", "kubeflow-trainjob", "dpo", BY_POD)),
        ("torchrun t.py", PYTORCHJOB, (3, 1, "dpo-master-0", "kubeflow-pytorchjob", "dpo", MASTER)),
        ("python t.py", PYTORCHJOB, (3, 1, "dpo-master-0", "kubeflow-pytorchjob", "dpo", MASTER)),
        ("python t.py", OLD_PYTORCHJOB, (3, 1, "dpo-master-0", "kubeflow-pytorchjob", "dpo", MASTER)),
        (WITH_MASTER, OLD_PYTORCHJOB, (3, 1, "dpo-master-0", "kubeflow-pytorchjob", "dpo", MASTER)),
        ("python t.py", VOLCANO, (3, 2, "dpo-master-0.dpo", "volcano", "dpo", tuple(f"{name}.dpo" for name in MASTER))),
        ("python t.py", VOLCANO_TASK,
         (3, 1, "dpo-train-0.dpo", "volcano", "dpo", ("dpo-train-0.dpo", "dpo-train-1.dpo", "dpo-train-2.dpo"))),
        ("swift sft", PODS, (3, 1, "dpo-0.dpo", "kubernetes", "", DPO)),
    ],
)  # fmt: skip
def test_pods_are_the_nodes(words: str, env: dict[str, str], expected: tuple[object, ...]) -> None:
    found = nodes_of(words.split(), env)

    assert (found.count, found.node_rank, found.address, found.launcher, found.job, found.hosts) == expected
    assert found.bad == ()


@pytest.mark.parametrize(
    ("words", "env"),
    [
        # the first pod of a JobSet cannot tell whether its fellows are pods of its Job or other Jobs
        ("swift sft", JOBSET | {"NODE_RANK": "0", "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "dpo-node-0-0"}),
        # a pod whose name does not say what its rank says
        ("swift sft", INDEXED | {"HOSTNAME": "dpo-1"}),
        ("swift sft", INDEXED | {"NODE_RANK": "1"}),
        ("swift sft", JOBSET | {"HOSTNAME": "dpo-node-1-1"}),
        ("swift sft", PODS | {"HOSTNAME": "web-7d9"}),
        # another pattern of node 0's name
        ("swift sft", INDEXED | {"MASTER_ADDR": "10.1.2.3"}),
        ("swift sft", INDEXED | {"MASTER_ADDR": "dpo-1.dpo"}),
        # the rendezvous numbers the nodes, and the workers' names may not follow it
        ("torchrun t.py", ELASTIC),
        # node 0 is of another task
        ("python t.py", VOLCANO | {"MASTER_ADDR": "dpo-worker-0.dpo"}),
        ("python t.py", VOLCANO | {"MASTER_ADDR": "dpo-ps-0.dpo"}),
        # not in Kubernetes at all
        ("swift sft", {k: v for k, v in PODS.items() if not k.startswith("KUBERNETES")}),
    ],
)
def test_names_that_are_not_certain_are_not_made_up(words: str, env: dict[str, str]) -> None:
    found = nodes_of(words.split(), env)

    assert found.count == 3
    assert found.hosts == ()


@pytest.mark.parametrize(("replicas", "hosts"), [("1", BY_POD), ("3", BY_JOB), ("2", ())])
def test_first_pod_of_a_jobset_knows_the_others_where_the_manifest_tells_the_replicas(
    replicas: str, hosts: tuple[str, ...]
) -> None:
    first = JOBSET | {"NODE_RANK": "0", "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "dpo-node-0-0"}

    assert nodes_of(["swift", "sft"], first | {"REPLICATED_JOB_REPLICAS": replicas}).hosts == hosts


def test_jobset_is_called_by_its_own_name() -> None:
    assert nodes_of(["swift", "sft"], JOBSET | {"JOBSET_NAME": "dpo-2"}).job == "dpo-2"


def test_elastic_pytorchjob_has_a_count_and_no_rank() -> None:
    found = nodes_of(["torchrun", "t.py"], ELASTIC)

    assert (found.count, found.node_rank, found.launcher, found.job) == (
        3,
        None,
        "kubeflow-pytorchjob",
        "dpo",
    )


def test_many_jobs_of_one_node_each_are_each_their_own_node_0() -> None:
    env = IN_POD | {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "sweep-3"}

    found = nodes_of(["python", "t.py"], env)

    assert (found.count, found.node_rank, found.hosts, found.job) == (1, 0, (), "sweep")


def test_torchrun_that_was_not_told_of_the_other_pods_runs_on_one() -> None:
    assert nodes_of(["torchrun", "t.py"], OLD_PYTORCHJOB).count == 1


@pytest.mark.parametrize(
    ("env", "launcher", "hosts"),
    [
        (INDEXED, "kubernetes-indexed-job", DPO),
        (JOBSET, "jobset", BY_POD),
        (PYTORCHJOB, "kubeflow-pytorchjob", MASTER),
    ],
)
def test_rank_in_a_pod_knows_the_other_pods(
    env: dict[str, str], launcher: str, hosts: tuple[str, ...]
) -> None:
    node = env.get("NODE_RANK") or env["PET_NODE_RANK"]
    rank = {
        "RANK": str(8 * int(node)), "LOCAL_RANK": "0", "WORLD_SIZE": "24", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip

    found = nodes_of_rank(env | rank)

    assert found is not None
    assert (found.count, found.node_rank, found.launcher, found.hosts, found.job) == (
        3,
        int(node),
        launcher,
        hosts,
        "dpo",
    )


def test_rank_of_an_old_pytorchjob_is_not_taken_for_its_pod() -> None:
    rank = {"RANK": "12", "LOCAL_RANK": "4", "WORLD_SIZE": "24", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1"}

    found = nodes_of_rank(OLD_PYTORCHJOB | rank)

    assert found is not None
    assert (found.count, found.node_rank, found.launcher) == (3, 1, "kubernetes")
