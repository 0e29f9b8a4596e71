"""Ranks, devices and nodes: what the manifest, its variables and its command say against each other."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.launch_devices import trains_on_cpu
from diag.preflight.launch_layout import layout_lines
from diag.preflight.line import Line
from diag.preflight.manifest.container import INDEX, POD_NAME, Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, told
from diag.preflight.visible import visible_gpus

_ID = "launch-mismatch"


def _from(path: str) -> str:
    return f'valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}'


_INDEX_REMEDY = {
    "JOB_COMPLETION_INDEX": _from("metadata.annotations['batch.kubernetes.io/job-completion-index']"),
    "pod-index": _from("metadata.labels['apps.kubernetes.io/pod-index']"),
    "jobset": _from("metadata.labels['jobset.sigs.k8s.io/job-global-index']"),
    "operator": _from("metadata.labels['training.kubeflow.org/replica-index']") + " (of workers: + 1)",
    "VC_TASK_INDEX": "in the command: NODE_RANK=$VC_TASK_INDEX",
}
_SWIFT = ("swift", "megatron")
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def count_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if not trainer.group.is_worker or trainer.group.index == "mpirun":
                continue
            yield from _unfilled(trainer)
            yield from _devices(trainer)
            yield from _node_rank(trainer, job)
            if trainer is job.trainers[0]:
                yield from _nodes(trainer, job)
                yield from _layout(trainer, job)
                yield from _same_rank(job)


def _unfilled(trainer: Trainer) -> Iterator[Line]:
    for name, inner in trainer.unfilled.items():
        if inner == "JOB_COMPLETION_INDEX":
            yield told(
                trainer.fields[name],
                "problem",
                "$(JOB_COMPLETION_INDEX) stays as it is written: Kubernetes puts that variable behind all others, and fills in "
                "only those that stand before",
                f"- name: {name}\n  {_INDEX_REMEDY['JOB_COMPLETION_INDEX']}",
                _ID,
                "critical",
            )
        else:
            yield told(
                trainer.fields[name],
                "problem",
                f"$({inner}) stays as it is written: {inner} comes later in the list",
                f"move {inner} in front of {name}",
                _ID,
            )


def _devices(trainer: Trainer) -> Iterator[Line]:
    processes, from_ = _processes(trainer)
    if trainer.facts.launch is not None and trains_on_cpu(trainer.facts):
        return
    gpus = trainer.gpus
    if gpus is None:
        field = trainer.gpus_field
        if (processes or 0) > 1 and not trainer.is_privileged and not field.is_template:
            yield told(
                field,
                "note",
                f"no device is asked for, and CMD starts {processes} ranks",
                f"resources:\n  limits:\n    nvidia.com/gpu: {processes}",
                _ID,
            )
        return
    shown = gpus
    wrong = _wrongly_visible(trainer, gpus, processes)
    if wrong is not None:
        line, shown = wrong
        yield line
    if processes is not None and from_ and shown == gpus:
        yield from _unequal(trainer, processes, from_, gpus)
    elif processes == 1 and gpus > 1 and not from_ and trainer.ranks_are_known:
        yield from _one_rank(trainer, gpus)


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
    why = seen.wrong or f"it shows {seen.count} of the container's {gpus} GPUs"
    line = told(
        trainer.place("CUDA_VISIBLE_DEVICES"),
        "problem",
        f"{visible!r}: {why}. In a container GPUs are counted from 0, whichever they are on the node",
        "take it out: the device plugin shows the container its own GPUs",
        _ID,
        "critical" if seen.count is not None and seen.count < (processes or 1) else "warning",
    )
    return line, seen.count if seen.count is not None else gpus


def _resource(trainer: Trainer) -> str:
    return str(trainer.gpus_field.path[-1])


def _one_rank(trainer: Trainer, gpus: int) -> Iterator[Line]:
    """Nothing says how many ranks start, which is one."""
    launcher = trainer.facts.launch.launcher if trainer.facts.launch is not None else ""
    if launcher in _SWIFT:
        why, remedy = "NPROC_PER_NODE is not set", f'- {{name: NPROC_PER_NODE, value: "{gpus}"}}'
    elif launcher == "torchrun":
        why, remedy = "no --nproc_per_node is given", f"--nproc_per_node {gpus}"
    else:
        return
    text = f"{why}, so that 1 rank starts, and the container has {gpus} GPUs"
    yield told(trainer.container, "problem", text, remedy, _ID)


def _unequal(trainer: Trainer, processes: int, from_: str, gpus: int) -> Iterator[Line]:
    place, name = trainer.place("NPROC_PER_NODE", "PET_NPROC_PER_NODE"), _resource(trainer)
    if processes > gpus:
        yield told(
            place,
            "problem",
            f"{processes} ranks ({from_}) and {gpus} GPU{'s' if gpus != 1 else ''} ({name}: {gpus}): local "
            f"rank {gpus} finds none (invalid device ordinal)",
            f"{name}: {processes}, or {from_}: {gpus}",
            _ID,
            "critical",
        )
    elif processes < gpus:
        yield told(
            place,
            "problem",
            f"{processes} rank{'s' if processes != 1 else ''} ({from_}), and {gpus - processes} of {gpus} GPUs "
            f"({name}: {gpus}) stay idle",
            f"{from_}: {gpus}, or {name}: {processes}",
            _ID,
        )


def _joined(trainer: Trainer) -> bool:
    """Whether its pods are meant to meet: Jobs of many pods may also be sweeps."""
    group = trainer.group
    return (
        bool(trainer.place("MASTER_ADDR", "NODE_RANK", "NNODES") is not trainer.container)
        or bool(trainer.meeting.address)
        or group.trains
        or group.spec.at("subdomain").there
    )


def _nodes(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    pods, nodes = job.pods, job.nodes_of(trainer)
    if pods is None or nodes is None or not trainer.all_known:
        return
    place = trainer.place("NNODES", "PET_NNODES")
    group = trainer.group
    where = ", ".join(dict.fromkeys(each.group.document.title for each in job.trainers))
    if trainer.meeting.nodes_from and nodes != pods:
        text = trainer.environment.get("PET_NNODES", "")
        least = text.partition(":")[0] if ":" in text else ""
        if least.isdecimal() and int(least[:9]) <= pods <= nodes:
            return
        if pods < nodes and group.kind in ("Pod", "Job") and group.count == 1:
            yield told(
                place,
                "not checked",
                f"the job has {nodes} nodes ({trainer.meeting.nodes_from}), and {where} "
                f"{'is' if pods == 1 else 'are'} {pods} of them",
                "give the others too: diag doctor --manifest FOLDER",
            )
            return
        wait = (
            f"they wait for {nodes - pods} more, for ever"
            if nodes > pods
            else f"{pods - nodes} are turned away"
        )
        yield told(
            place,
            "problem",
            f"{nodes} nodes ({trainer.meeting.nodes_from}), and {where} makes {pods} pod{'s' if pods != 1 else ''}: {wait}",
            _count_remedy(trainer, nodes, pods),
            _ID,
            "critical",
        )
    elif not trainer.meeting.nodes_from and pods > 1 and _joined(trainer):
        yield from _nodes_not_given(trainer, pods)


def _nodes_not_given(trainer: Trainer, pods: int) -> Iterator[Line]:
    launcher = trainer.meeting.launcher
    if trainer.facts.launch is None or launcher not in (*_SWIFT, *_TORCHRUN):
        return
    if launcher in _TORCHRUN and "PET_NNODES" in trainer.group.tells:
        return
    name = "NNODES" if launcher in _SWIFT else "--nnodes"
    yield told(
        trainer.container,
        "problem",
        f"{name} is not given: each of {pods} pods would train for itself",
        f'- {{name: NNODES, value: "{pods}"}}' if launcher in _SWIFT else f"--nnodes {pods}",
        _ID,
        "critical",
    )


def _count_remedy(trainer: Trainer, nodes: int, pods: int) -> str:
    field = {
        "Job": f"completions: {nodes}\nparallelism: {nodes}",
        "JobSet": f"completions: {nodes}\nparallelism: {nodes}",
        "TrainJob": f"numNodes: {nodes}",
        "TrainingRuntime": f"numNodes: {nodes}",
        "ClusterTrainingRuntime": f"numNodes: {nodes}",
    }.get(trainer.group.kind, f"replicas: {nodes}")
    return f"{trainer.meeting.nodes_from}: {pods}, or\n{field}"


def _node_rank(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    group, rank, launcher = trainer.group, job.rank_of(trainer), trainer.meeting.launcher
    nodes = job.nodes_of(trainer)
    if (
        (nodes is not None and nodes < 2)
        or (group.count or 2) < 2
        or trainer.meeting.backend != "static"
        or rank == INDEX
    ):
        if rank.isdecimal() and nodes is not None and nodes > 1 and int(rank) >= nodes:
            yield told(
                trainer.place("NODE_RANK"),
                "problem",
                f"{rank}, and there are {nodes} nodes: they go from 0 to {nodes - 1}",
                f'value: "{nodes - 1}"',
                _ID,
                "critical",
            )
        return
    remedy = f"- name: NODE_RANK\n  {_INDEX_REMEDY.get(group.index, 'a number of each pod: an Indexed Job has one')}"
    if rank.isdecimal():
        yield told(
            trainer.place("NODE_RANK", "PET_NODE_RANK"),
            "problem",
            f"each of {group.count or 'several'} pods would be node {rank}",
            remedy,
            _ID,
            "critical",
        )
    elif POD_NAME in rank and rank == POD_NAME:
        yield told(
            trainer.place("NODE_RANK"),
            "problem",
            "a pod's name is no number, and NODE_RANK has to be one",
            remedy,
            _ID,
            "critical",
        )
    elif (
        not rank
        and launcher in (*_SWIFT, *_TORCHRUN)
        and trainer.all_known
        and trainer.facts.launch is not None
    ):
        if "PET_NODE_RANK" in group.tells and launcher in _TORCHRUN:
            return
        if any(bad.startswith(("NODE_RANK", "--node_rank", "--node-rank")) for bad in trainer.meeting.bad):
            return
        yield told(
            trainer.container,
            "problem",
            f"NODE_RANK is not given, and {launcher} takes 0: each of {group.count or 'several'} pods would be node 0",
            remedy,
            _ID,
            "critical",
        )


def _same_rank(job: ManifestJob) -> Iterator[Line]:
    """Of nodes that are written out, one manifest each."""
    seen: dict[str, Trainer] = {}
    for trainer in job.trainers:
        rank = job.rank_of(trainer)
        if trainer.group.count != 1 or not rank.isdecimal() or (job.nodes_of(trainer) or 1) < 2:
            continue
        if rank in seen:
            yield told(
                trainer.place("NODE_RANK", "PET_NODE_RANK"),
                "problem",
                f"{trainer.group.document.title} and {seen[rank].group.document.title} would both be node {rank}",
                "a number from 0 on, another one in each",
                _ID,
                "critical",
            )
        seen.setdefault(rank, trainer)


def _layout(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    if not trainer.ranks_are_known or job.nodes_of(trainer) is None:
        return
    for line in layout_lines(trainer.facts):
        if line.status == "problem":
            yield told(
                trainer.container.at("command"), "problem", line.said, line.remedy, line.id, line.severity
            )
