"""How many: ranks, devices and nodes, by the manifest, its variables and its command, and whether pods start again
that ended well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from diag.preflight.launch import kept_back_lines, layout_lines
from diag.preflight.launch_devices import trains_on_cpu
from diag.preflight.line import Line, table
from diag.preflight.manifest.container import INDEX, POD_NAME, Trainer
from diag.preflight.manifest.edits import (
    Edit,
    as_job,
    drop_variable,
    put,
    set_devices,
    set_variable,
    swap_in_script,
)
from diag.preflight.manifest.job import ManifestJob, Manifests, at, report
from diag.preflight.manifest.pods import FOREVER
from diag.preflight.visible import visible_gpus

_SWIFT = ("swift", "megatron")
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def count_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if not trainer.group.is_worker or trainer.group.index == "mpirun":
                continue
            for name, inner in trainer.unfilled.items():
                key = "unexpanded_index" if inner == "JOB_COMPLETION_INDEX" else "unexpanded"
                how, edits = _number_of_pod(inner), _numbered(trainer, inner, name)
                yield report(trainer.fields[name], key, edits=edits, name=name, inner=inner, how=how)
            for line in kept_back_lines(trainer.facts):
                yield at(trainer.container.at("args"), line)
            yield from _devices(trainer)
            yield from _node_rank(trainer, job)
            if trainer is job.trainers[0]:
                yield from _nodes(trainer, job)
                yield from _layout(trainer, job)
                yield from _same_rank(job)


def _number_of_pod(index: str) -> str:
    """How a pod learns its number; "" where it has none."""
    return str(table("manifest")["node_rank"].get(index, ""))


def _reference(index: str) -> dict[str, Any] | None:
    """What stands under valueFrom for a pod's number; None where a manifest cannot say it."""
    try:
        value = yaml.safe_load(_number_of_pod(index))
    except yaml.YAMLError:
        return None
    found = value.get("valueFrom") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else None


def _numbered(trainer: Trainer, index: str, name: str) -> list[Edit]:
    """The node rank from the pod's number, in the manifest or in the script that sets it."""
    reference, rank = _reference(index), trainer.meeting.node_rank
    if reference is None:
        return []
    text = trainer.fields[name].at("value").text if name in trainer.fields else ""
    in_script = [] if text == str(rank) else swap_in_script(trainer, f"{name}={rank}", f"{name}=${index}")
    if index == "JOB_COMPLETION_INDEX" and in_script:
        return in_script
    return set_variable(trainer, name, reference)


def _devices(trainer: Trainer) -> Iterator[Line]:
    processes, source = _processes(trainer)
    if trainer.facts.launch is not None and trains_on_cpu(trainer.facts):
        return
    gpus, field = trainer.gpus, trainer.gpus_field
    if gpus is None:
        if (processes or 0) > 1 and not trainer.is_privileged and not field.is_template:
            edits = set_devices(trainer, processes or 1)
            yield report(field, "no_device", edits=edits, processes=processes)
        return
    shown = gpus
    wrong = _wrongly_visible(trainer, gpus, processes)
    if wrong is not None:
        line, shown = wrong
        yield line
    name = _resource(trainer)
    if processes is not None and source and shown == gpus and processes != gpus:
        yield report(
            trainer.place("NPROC_PER_NODE", "PET_NPROC_PER_NODE"),
            "ranks_without_gpu" if processes > gpus else "idle_gpus",
            edits=set_devices(trainer, processes),
            processes=processes,
            source=_said_by(trainer, source, processes),
            setting=source,
            gpus=gpus,
            idle=gpus - processes,
            name=name,
        )
    elif processes == 1 and gpus > 1 and not source and trainer.ranks_are_known:
        launcher = trainer.facts.launch.launcher if trainer.facts.launch is not None else ""
        if launcher in (*_SWIFT, "torchrun"):  # nothing says how many ranks start, which is one
            key = "one_rank_swift" if launcher in _SWIFT else "one_rank_torchrun"
            edits = set_variable(trainer, _own(trainer, "NPROC_PER_NODE"), str(gpus))
            yield report(trainer.container, key, edits=edits, gpus=gpus)


def _own(trainer: Trainer, name: str) -> str:
    """The variable that its launcher reads."""
    return name if trainer.meeting.launcher in _SWIFT else f"PET_{name}"


def _said_by(trainer: Trainer, source: str, processes: int) -> str:
    """Its command's own value, where it puts another one in the place of the manifest's."""
    field = trainer.fields.get(source)
    text = field.at("value").text if field is not None else ""
    replaced = text.isdecimal() and text != str(processes)
    return f"{source}={processes} in its command, which replaces {text}" if replaced else source


def _processes(trainer: Trainer) -> tuple[int | None, str]:
    """Ranks of a pod, and what says so."""
    launch = trainer.facts.launch
    if launch is not None and launch.processes is not None:
        return launch.processes, launch.processes_from
    text = trainer.environment.get("NPROC_PER_NODE", "")
    return (int(text), "NPROC_PER_NODE") if text.isdecimal() and len(text) < 5 else (None, "")


def _wrongly_visible(trainer: Trainer, gpus: int, processes: int | None) -> tuple[Line, int] | None:
    """What CUDA_VISIBLE_DEVICES hides, and how many GPUs it shows."""
    visible = trainer.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or "\x01" in visible or visible == "all" or _resource(trainer) != "nvidia.com/gpu":
        return None
    seen = visible_gpus({"CUDA_VISIBLE_DEVICES": visible}, tuple(f"GPU-{number}" for number in range(gpus)))
    if not seen.wrong and (seen.count or 0) >= min(gpus, processes or gpus):
        return None
    line = report(
        trainer.place("CUDA_VISIBLE_DEVICES"),
        "hidden_gpus",
        edits=drop_variable(trainer, "CUDA_VISIBLE_DEVICES", visible),
        severity="critical" if seen.count is not None and seen.count < (processes or 1) else "",
        visible=visible,
        why=seen.wrong or f"it shows {seen.count} of the container's {gpus} GPUs",
    )
    return line, seen.count if seen.count is not None else gpus


def _resource(trainer: Trainer) -> str:
    return str(trainer.gpus_field.path[-1])


def meets(trainer: Trainer) -> bool:
    """Whether its pods are meant to meet: Jobs of many pods may also be sweeps."""
    group = trainer.group
    return (
        trainer.place("MASTER_ADDR", "NODE_RANK", "NNODES") is not trainer.container
        or bool(trainer.meeting.address)
        or group.trains
        or group.spec.at("subdomain").there
    )


def _nodes(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    pods, nodes = job.pods, job.nodes_of(trainer)
    if pods is None or nodes is None or not trainer.all_known:
        return
    group, source = trainer.group, trainer.meeting.nodes_from
    if not source:
        if pods > 1 and meets(trainer):
            yield from _nodes_not_given(trainer, pods)
        return
    least, colon, _ = trainer.environment.get("PET_NNODES", "").partition(":")
    if nodes == pods or (colon and least.isdecimal() and int(least[:9]) <= pods <= nodes):
        return
    where = ", ".join(dict.fromkeys(each.group.document.title for each in job.trainers))
    values: dict[str, Any] = {"source": source, "nodes": nodes, "pods": pods, "where": where}
    place = trainer.place("NNODES", "PET_NNODES")
    if pods < nodes and group.kind in ("Pod", "Job") and group.count == 1:
        yield report(place, "part_of_the_nodes", are="is" if pods == 1 else "are", **values)
        return
    more = f"they wait forever for {nodes - pods} more"
    wait = more if nodes > pods else f"{pods - nodes} are rejected"
    setting, edits = _count_field(group.kind, nodes), _pods(trainer, job, nodes)
    values["said"] = _said_by(trainer, source, nodes)
    yield report(place, "nodes_unequal_pods", edits=edits, wait=wait, setting=setting, **values)


def _nodes_not_given(trainer: Trainer, pods: int) -> Iterator[Line]:
    launcher = trainer.meeting.launcher
    if trainer.facts.launch is None or launcher not in (*_SWIFT, *_TORCHRUN):
        return
    if launcher in _TORCHRUN and "PET_NNODES" in trainer.group.sets:
        return
    edits = set_variable(trainer, _own(trainer, "NNODES"), str(pods))
    key = "nnodes_swift" if launcher in _SWIFT else "nnodes_torchrun"
    yield report(trainer.container, key, edits=edits, pods=pods)


def _pods(trainer: Trainer, job: ManifestJob, nodes: int) -> list[Edit]:
    """As many as there are to be nodes, where one field says it."""
    group = trainer.group
    counts: tuple[str, ...] = ()
    if group.kind in ("Job", "CronJob", "JobSet"):
        replicas = group.document.root.at(*group.owner.path[:-2], "replicas").number
        counts = ("completions", "parallelism") if group.kind != "JobSet" or replicas in (None, 1) else ()
    elif group.kind in FOREVER[:3]:
        counts = ("replicas",)
    return [] if len(job.trainers) > 1 else [put(group.owner.at(name), nodes) for name in counts]


def _count_field(kind: str, nodes: int) -> str:
    """The field of a kind that would make so many pods."""
    if kind in ("Job", "JobSet"):
        return f"completions: {nodes}\nparallelism: {nodes}"
    return f"{'numNodes' if 'Train' in kind else 'replicas'}: {nodes}"


def _node_rank(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    group, rank, nodes = trainer.group, job.rank_of(trainer), job.nodes_of(trainer)
    one_node = (nodes is not None and nodes < 2) or (group.count or 2) < 2
    if one_node or trainer.meeting.backend != "static" or rank == INDEX:
        if rank.isdecimal() and nodes is not None and nodes > 1 and int(rank) >= nodes:
            place = trainer.place("NODE_RANK")
            yield report(place, "node_rank_too_large", rank=rank, nodes=nodes, last=nodes - 1)
        return
    values: dict[str, Any] = {
        "pods": group.count or "several",
        "rank": rank,
        "launcher": trainer.meeting.launcher,
        "how": _number_of_pod(group.index) or "a number of each pod: an Indexed Job has one",
    }
    values["edits"] = _numbered(trainer, group.index, _own(trainer, "NODE_RANK"))
    if rank.isdecimal():
        yield report(trainer.place("NODE_RANK", "PET_NODE_RANK"), "node_rank_same", **values)
    elif rank == POD_NAME:
        yield report(trainer.place("NODE_RANK"), "node_rank_name", **values)
    elif not rank and trainer.all_known and trainer.facts.launch is not None and _takes_rank_0(trainer):
        yield report(trainer.container, "node_rank_missing", **values)


def _takes_rank_0(trainer: Trainer) -> bool:
    """Whether its launcher would be node 0 where no node rank is given."""
    launcher = trainer.meeting.launcher
    by_operator = launcher in _TORCHRUN and "PET_NODE_RANK" in trainer.group.sets
    unread = any(bad.startswith(("NODE_RANK", "--node_rank", "--node-rank")) for bad in trainer.meeting.bad)
    return launcher in (*_SWIFT, *_TORCHRUN) and not by_operator and not unread


def _same_rank(job: ManifestJob) -> Iterator[Line]:
    """Of nodes that are written out, one manifest each."""
    seen: dict[str, Trainer] = {}
    for trainer in job.trainers:
        rank = job.rank_of(trainer)
        if trainer.group.count != 1 or not rank.isdecimal() or (job.nodes_of(trainer) or 1) < 2:
            continue
        other = seen.setdefault(rank, trainer)
        if other is not trainer:
            place, title = trainer.place("NODE_RANK", "PET_NODE_RANK"), trainer.group.document.title
            yield report(place, "node_rank_twice", one=title, other=other.group.document.title, rank=rank)


def _layout(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    if not trainer.ranks_are_known or job.nodes_of(trainer) is None:
        return
    for line in layout_lines(trainer.facts):
        if line.status == "problem":
            yield at(trainer.container.at("command"), line)


def restart_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            yield from _for_ever(trainer, job, manifests)
            if trainer.group.document.kind in ("Job", "CronJob", "JobSet") and not trainer.group.trains:
                yield from _job_policy(trainer)
                yield from _all_at_once(trainer, job)


def _for_ever(trainer: Trainer, job: ManifestJob, manifests: Manifests) -> Iterator[Line]:
    group = trainer.group
    if group.forever is None or trainer.waits:
        return
    if group.kind in FOREVER:
        subdomain = manifests.subdomain_of(group)
        edits = as_job(trainer, job.pods, subdomain, _reference("JOB_COMPLETION_INDEX"))
        values: dict[str, Any] = {"kind": group.kind, "pods": job.pods or "N", "subdomain": subdomain}
        yield report(group.forever, "restarted_by_kind", edits=edits, **values)
    else:
        default = "" if group.forever.there else " (the default of a Pod)"
        never = [put(group.forever, "Never")]
        yield report(group.forever, "restarted_by_kubelet", edits=never, default=default)


def _job_policy(trainer: Trainer) -> Iterator[Line]:
    policy = trainer.group.spec.at("restartPolicy")
    if policy.is_template or policy.text in ("Never", "OnFailure"):
        return
    if policy.there or trainer.group.kind != "JobSet":
        text = policy.text if policy.there else "it is missing, and the default is Always"
        yield report(policy, "job_policy", edits=[put(policy, "Never")], policy=text)


def _all_at_once(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    owner, nodes = trainer.group.owner, job.nodes_of(trainer)
    completions, parallelism = owner.at("completions"), owner.at("parallelism")
    wanted = completions.number
    together = parallelism.number if parallelism.there else 1
    meets = (nodes or 1) > 1 or trainer.group.spec.at("subdomain").there or "MASTER_ADDR" in trainer.fields
    if wanted is None or together is None or together >= wanted or not meets:
        return
    place, default = (parallelism, "") if parallelism.there else (completions, " (the default)")
    edits = [put(parallelism, wanted)]
    yield report(place, "not_all_at_once", edits=edits, together=together, wanted=wanted, default=default)
