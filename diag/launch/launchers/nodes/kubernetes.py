"""Nodes that are Kubernetes pods: which operator made them, and the other pods' names where the pattern of
names is certain.

Read from sources (marked with file and version), not run: there is no API server to run them on here.
"""

from __future__ import annotations

import re
from dataclasses import replace

from diag.launch.launchers import Environment
from diag.launch.launchers.hostlist import MOST_HOSTS
from diag.launch.launchers.nodes.facts import Engine, first, number, shown

# kubeflow/training-operator at 5fa872f (1.5), pkg/controller.v1/pytorch (envvar, master, elastic):
# MASTER_ADDR is <job>-master-0, RANK and WORLD_SIZE are the pod's. Later ones (from users' scripts, not read)
# set PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR too and multiply WORLD_SIZE. With elasticPolicy
# PET_RDZV_ENDPOINT is <job>-worker-0:PORT; the rendezvous numbers the nodes.
_PYTORCHJOB = re.compile(r"([a-z0-9.-]{1,200})-master-0((?:\.[a-z0-9.-]{1,250})?)")
_ELASTIC = re.compile(r"([a-z0-9.-]{1,200})-worker-0(?::\d{1,5})?")
# kubeflow/trainer at 06b555d (2.x), pkg/runtime/framework/plugins/torch/torch.go:
# <trainjob>-node-0-0.<trainjob>
_TRAINJOB = re.compile(r"([a-z0-9-]{1,200})-node-0-0\.([a-z0-9-]{1,200})((?:\.[a-z0-9.-]{1,250})?)")
# kubernetes-sigs/jobset at 3084b9e, pkg/util/placement: GenJobName, and the Indexed Job's own rule behind it:
# <jobset>-<replicatedJob>-<job index>-<pod index>.<subdomain>
_JOBSET = re.compile(r"([a-z0-9-]{1,250})-0-0(\.[a-z0-9.-]{1,250})")
# kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication (1.21 and later): hostname <job>-<index>,
# subdomain the Service
_INDEXED = re.compile(r"([a-z0-9.-]{1,250}?)-0((?:\.[a-z0-9.-]{1,250})?)")
# Of node 0's address, by engine.
_PATTERNS = {
    "kubeflow-trainjob": _TRAINJOB,
    "kubeflow-pytorchjob": _PYTORCHJOB,
    "jobset": _JOBSET,
    "kubernetes-indexed-job": _INDEXED,
    "kubernetes": _INDEXED,
}


def of_kubernetes(env: Environment, address: str) -> Engine | None:
    """`address` is where CMD's nodes meet, as its launcher reads it, "" where it is not known."""
    address = address or first(env, "MASTER_ADDR", "PET_MASTER_ADDR")[0]
    return _volcano(env, address) or _kubeflow(env, address) or _job(env, address)


def _volcano(env: Environment, address: str) -> Engine | None:
    """volcano-sh/volcano at 08812f6 and 026df29, pkg/controllers/job/plugins: env gives VC_TASK_INDEX and
    VK_TASK_INDEX, svc VC_<TASK>_HOSTS and VC_<TASK>_NUM, pytorch MASTER_ADDR, RANK and WORLD_SIZE; the master
    is 0 and worker i is i + 1."""
    index, index_from = number(env, "VC_TASK_INDEX", "VK_TASK_INDEX")
    if index is None:
        return None
    lists = _lists_of_tasks(env)
    first_hosts = [hosts[0] for hosts in lists.values() if hosts]
    job = next(filter(None, (host.partition(".")[2].partition(".")[0] for host in first_hosts)), "")
    own = _ranks_of_pods(env)
    if {"VC_MASTER_HOSTS", "VC_WORKER_HOSTS"} <= lists.keys():
        hosts, who = lists["VC_MASTER_HOSTS"] + lists["VC_WORKER_HOSTS"], "VC_MASTER_HOSTS, VC_WORKER_HOSTS"
        count, count_from, node_rank, rank_from = own or (len(hosts), who, None, "")
    elif len(lists) == 1:
        ((who, hosts),) = lists.items()
        count, count_from, node_rank, rank_from = own or (len(hosts), who, index, index_from)
    else:
        return Engine("volcano", job, *(own or ()))
    found = Engine("volcano", job, count, count_from, node_rank, rank_from)
    if len(hosts) > MOST_HOSTS or len(set(hosts)) != len(hosts):
        return replace(found, bad=(shown(who, ",".join(hosts[:9])),))
    if not hosts or (address and address != hosts[0]):  # another task's first pod is node 0
        return found
    return replace(found, hosts=hosts, hosts_from=who)


def _lists_of_tasks(env: Environment) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(filter(None, map(str.strip, text.split(","))))
        for name, text in sorted(env.items())
        if name.startswith("VC_") and name.endswith("_HOSTS") and len(text) <= 1 << 20
    }


def _kubeflow(env: Environment, address: str) -> Engine | None:
    found = _TRAINJOB.fullmatch(address) if "PET_NNODES" in env else None
    if found and found[1] == found[2]:
        return Engine("kubeflow-trainjob", found[1], *_pet(env))
    found = _PYTORCHJOB.fullmatch(address)
    if found and ("PET_NNODES" in env or _ranks_of_pods(env)):
        return Engine(
            "kubeflow-pytorchjob",
            found[1],
            *(_pet(env) if "PET_NNODES" in env else _ranks_of_pods(env) or ()),
        )
    found = _ELASTIC.fullmatch(env.get("PET_RDZV_ENDPOINT", ""))
    if found:
        return Engine("kubeflow-pytorchjob", found[1], *_pet(env)[:2])
    return None


def _job(env: Environment, address: str) -> Engine | None:
    """A Job or JobSet gives no number of nodes, only which of them this is."""
    index, index_from = number(env, "JOB_COMPLETION_INDEX")
    own = env.get("HOSTNAME", "")
    found = _JOBSET.fullmatch(address)
    if found or env.get("JOBSET_NAME"):
        subdomain = found[2][1:].partition(".")[0] if found else ""
        # the subdomain is the JobSet's name unless spec.network.subdomain says otherwise
        job = env.get("JOBSET_NAME") or (subdomain if found and found[1].startswith(subdomain + "-") else "")
        job = job or (found[1] if found else "")
        if env.get("JOBSET_NAME") or index is not None:
            node_rank = _place(found[1], own) if found else None
            return Engine("jobset", job, None, "", node_rank, "HOSTNAME" if node_rank is not None else "")
    if index is not None:
        job = own[: -len(f"-{index}")] if own.endswith(f"-{index}") else ""
        return Engine("kubernetes-indexed-job", job, None, "", index, index_from)
    if env.get("KUBERNETES_SERVICE_HOST"):
        return Engine("kubernetes")
    return None


def _place(base: str, own: str) -> int | None:
    """Of a JobSet's pod <base>-<job index>-<pod index>: whichever of the two counts its nodes, the other is
    0."""
    found = (
        re.fullmatch(r"-(\d{1,6})-(\d{1,6})", own.partition(".")[0][len(base) :])
        if own.startswith(base)
        else None
    )
    places = (int(found[1]), int(found[2])) if found else (1, 1)
    return max(places) if 0 in places else None


def _pet(env: Environment) -> tuple[int | None, str, int | None, str]:
    """PET_NNODES may be a range, least:most."""
    count, _ = number({"PET_NNODES": env.get("PET_NNODES", "").rpartition(":")[2]}, "PET_NNODES")
    return (count, "PET_NNODES" if count is not None else "", *number(env, "PET_NODE_RANK"))


def _ranks_of_pods(env: Environment) -> tuple[int, str, int, str] | None:
    """RANK and WORLD_SIZE where they count pods: no launcher of ranks has set LOCAL_RANK beside them."""
    rank, _ = number(env, "RANK")
    size, _ = number(env, "WORLD_SIZE")
    if rank is None or not size or "LOCAL_RANK" in env:
        return None
    return size, "WORLD_SIZE", rank, "RANK"


def pod_names(
    engine: Engine, env: Environment, address: str, count: int, node_rank: int | None
) -> tuple[str, ...]:
    """The names of all nodes, made from node 0's where its pattern leaves no choice, else none.

    >>> from diag.launch.launchers.nodes.facts import Engine
    >>> pod_names(Engine("kubernetes-indexed-job", node_rank=1), {"HOSTNAME": "dpo-1"}, "dpo-0.dpo", 2, 1)
    ('dpo-0.dpo', 'dpo-1.dpo')
    """
    if node_rank is None or not 1 < count <= MOST_HOSTS or node_rank >= count:
        return ()
    own, nodes = env.get("HOSTNAME", "").partition(".")[0], range(count)
    pattern = _PATTERNS.get(engine.launcher)
    found = pattern.fullmatch(address) if pattern is not None else None
    if found is None:
        return ()
    job, *rest = found.groups()
    end = "".join(rest[-1:])
    match engine.launcher:
        case "kubeflow-trainjob":
            return tuple(f"{job}-node-0-{node}.{rest[0]}{end}" for node in nodes)
        case "kubeflow-pytorchjob":
            return (address, *(f"{job}-worker-{node}{end}" for node in nodes[:-1]))
        case "jobset":
            by_pod = tuple(f"{job}-0-{node}{end}" for node in nodes)
            by_job = tuple(f"{job}-{node}-0{end}" for node in nodes)
            return _one_of(by_pod, by_job, own, node_rank, env.get("REPLICATED_JOB_REPLICAS", ""))
    indexed = engine.launcher == "kubernetes-indexed-job"
    if own != f"{job}-{node_rank}" or (engine.node_rank != node_rank if indexed else not end):
        return ()
    return tuple(f"{job}-{node}{end}" for node in nodes)


def _one_of(
    by_pod: tuple[str, ...], by_job: tuple[str, ...], own: str, node_rank: int, replicas: str
) -> tuple[str, ...]:
    """A JobSet's nodes are the pods of one Job or the Jobs of one ReplicatedJob. The first node's name
    does not show which."""
    if replicas == "1":
        return by_pod
    if replicas == str(len(by_job)):
        return by_job
    if node_rank and own == by_pod[node_rank].partition(".")[0]:
        return by_pod
    if node_rank and own == by_job[node_rank].partition(".")[0]:
        return by_job
    return ()
