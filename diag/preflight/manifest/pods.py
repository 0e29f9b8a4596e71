"""What each kind of manifest makes: how many pods, by which names, who restarts them, which variables it sets.
Judges nothing.

By the controllers' own sources: Kubernetes 1.29-1.33 (Job, StatefulSet), JobSet v1alpha2, Kubeflow
training-operator 1.9 and Trainer 2.3, MPI operator v2beta1, Volcano 1.10.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from diag.preflight.manifest.reading import Document, Field

_MOST_NAMES = 4096
_PET = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE")
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
FOREVER = ("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet")
WORKLOADS = ("Job", "CronJob", "JobSet", "Pod", "PyTorchJob", "TrainJob", *_RUNTIMES, "MPIJob", *FOREVER)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods of one template.

    `owner` is the field that the controller's own settings lie in (a Job's spec). `count` is how many run at
    the same time, None where it is not known. `names` are their host names, empty where they are random.
    `subdomain` is the headless Service that makes these resolve; `has_service` where the controller makes it.
    `forever` is what starts a pod again that ended well. `index` is what each pod's number is known by.
    `sets` are the variables that the controller sets.
    """

    document: Document
    owner: Field
    spec: Field
    labels: dict[str, str]
    count: int | None = 1
    names: tuple[str, ...] = ()
    subdomain: str = ""
    has_service: bool = False
    bare_names: bool = False  # each pod has a Service of its own name
    forever: Field | None = None
    index: str = ""
    sets: frozenset[str] = field(default_factory=frozenset)
    nodes: int | None = None  # the value of PET_NNODES
    trains: bool = False  # it is of a kind that is for training only
    is_worker: bool = True  # not the launcher of mpirun

    @property
    def kind(self) -> str:
        return self.document.kind

    @property
    def containers(self) -> list[Field]:
        return [item for part in ("initContainers", "containers") for item in self.spec.at(part).items]

    @property
    def metadata(self) -> Field:
        """Of the pods: that of the template, or of the Pod itself."""
        spec = self.spec
        inner = (*spec.path[:-1], "metadata")
        return spec.document.root.at(*inner)

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Whether a selector chooses these pods; an empty one chooses none."""
        return bool(wanted) and all(self.labels.get(name) == value for name, value in wanted.items())


def pod_groups(documents: Sequence[Document]) -> list[PodGroup]:
    return [group for document in documents for group in _of_document(document, documents)]


def _of_document(document: Document, documents: Sequence[Document]) -> Iterator[PodGroup]:
    spec, kind = document.root.at("spec"), document.kind
    if kind == "Job" and document.group == "batch.volcano.sh":
        yield from _volcano(document, spec)
    elif kind in ("Job", "CronJob"):
        yield _job(document, spec.at("jobTemplate", "spec") if kind == "CronJob" else spec)
    elif kind == "Pod":
        yield _pod(document, spec)
    elif kind in FOREVER:
        yield _forever(document, spec)
    elif kind == "JobSet":
        yield from _jobset(document, spec)
    elif kind in _RUNTIMES:
        if not any(other.kind == "TrainJob" and _runtime_of(other, (document,)) for other in documents):
            yield from _runtime(document, None)
    elif kind == "TrainJob":
        runtime = _runtime_of(document, documents)
        if runtime is not None:
            yield from _runtime(runtime, document)
    elif kind == "PyTorchJob":
        yield from _pytorchjob(document, spec)
    elif kind == "MPIJob":
        yield from _mpijob(document, spec)


def _pods(document: Document, owner: Field, labels: Mapping[str, str] = {}, **known: Any) -> PodGroup:
    """Those of the template of `owner`; `labels` are what the controller adds."""
    template = owner.at("template")
    own = template.at("metadata", "labels").mapping
    return PodGroup(document, owner, template.at("spec"), {**own, **labels}, **known)


def _names(prefix: str, count: int | None) -> tuple[str, ...]:
    return tuple(f"{prefix}{index}" for index in range(min(count or 0, _MOST_NAMES)))


def _number(value: Field, default: int | None) -> int | None:
    """The default where nothing is given; None where it is filled in later."""
    return value.number if value.there else default


def _pod(document: Document, spec: Field) -> PodGroup:
    policy, hostname = spec.at("restartPolicy"), spec.at("hostname").text
    return PodGroup(
        document,
        spec,
        spec,
        document.root.at("metadata", "labels").mapping,
        names=(hostname,) if hostname else (),
        subdomain=spec.at("subdomain").text,
        forever=policy if policy.text in ("Always", "") and not policy.is_template else None,
    )


def _job(document: Document, spec: Field) -> PodGroup:
    name = document.name
    indexed = spec.at("completionMode").text == "Indexed"
    count = _number(spec.at("completions"), _number(spec.at("parallelism"), 1))
    return _pods(
        document,
        spec,
        {"job-name": name, "batch.kubernetes.io/job-name": name},
        count=count,
        names=_names(f"{name}-", count) if indexed else (),
        subdomain=spec.at("template", "spec", "subdomain").text,
        **_indexed(indexed),
    )


def _indexed(indexed: bool) -> dict[str, Any]:
    index = "JOB_COMPLETION_INDEX" if indexed else ""
    return {"index": index, "sets": frozenset({index} - {""})}


def _forever(document: Document, spec: Field) -> PodGroup:
    is_set = document.kind == "StatefulSet"
    count = None if document.kind == "DaemonSet" else _number(spec.at("replicas"), 1)
    return _pods(
        document,
        spec,
        count=count,
        names=_names(f"{document.name}-", count) if is_set else (),
        subdomain=(spec.at("serviceName") if is_set else spec.at("template", "spec", "subdomain")).text,
        forever=document.root.at("kind"),
        index="pod-index" if is_set else "",
    )


def _jobset(document: Document, spec: Field) -> Iterator[PodGroup]:
    network, name = spec.at("network"), document.name
    has_names = network.at("enableDNSHostnames").text != "false"
    for job in spec.at("replicatedJobs").items:
        owner = job.at("template", "spec")
        inner = _job(document, owner)
        indexed = owner.at("completionMode").text in ("Indexed", "")  # JobSet's default
        replicas, pods = _number(job.at("replicas"), 1), inner.count
        names = (
            f"{name}-{job.at('name').text}-{index}-{pod}"
            for index in range(min(replicas or 0, _MOST_NAMES))
            for pod in range(pods or 0)
        )
        known = _indexed(indexed) | ({"index": "jobset"} if (replicas or 1) > 1 else {})
        yield replace(
            inner,
            count=replicas * pods if replicas is not None and pods is not None else None,
            names=tuple(islice(names, _MOST_NAMES)) if indexed and has_names else (),
            subdomain=network.at("subdomain").text or name,
            has_service=has_names,
            labels={**inner.labels, "jobset.sigs.k8s.io/jobset-name": name},
            **known,
        )


def _runtime_of(job: Document, documents: Sequence[Document]) -> Document | None:
    reference = job.root.at("spec", "runtimeRef")
    kind, name = reference.at("kind").text or "ClusterTrainingRuntime", reference.at("name").text
    return next((other for other in documents if (other.kind, other.name) == (kind, name)), None)


def _runtime(runtime: Document, job: Document | None) -> Iterator[PodGroup]:
    """The operator sets parallelism and completions to the number of nodes in the job whose ancestor step is
    trainer."""
    document = _patched(runtime, job) if job is not None else runtime
    policy = document.root.at("spec", "mlPolicy")
    given = job.root.at("spec", "trainer", "numNodes") if job is not None else None
    nodes = given if given is not None and given.there else policy.at("numNodes")
    for group in _jobset(document, document.root.at("spec", "template", "spec")):
        labels = document.root.at(*group.owner.path[:-1], "metadata", "labels").mapping
        trains = labels.get(_STEP) == "trainer"
        count = _number(nodes, 1) if trains else group.count
        yield replace(
            group,
            count=count,
            nodes=count,
            names=_names(f"{group.names[0].rpartition('-')[0]}-", count) if group.names else (),
            trains=trains,
            index="JOB_COMPLETION_INDEX",
            sets=group.sets | (frozenset(_PET) if policy.at("torch").there else frozenset()),
        )


def _patched(runtime: Document, job: Document) -> Document:
    """The runtime with what the TrainJob gives in the place of its container's image, command, variables and
    devices."""
    value = copy.deepcopy(dict(runtime.value))
    value["kind"], value["metadata"] = job.kind, job.value.get("metadata")
    lines = dict(runtime.lines)
    given, patched = job.root.at("spec", "trainer"), Document(runtime.file, value, lines)
    for place in patched.root.at("spec", "template", "spec", "replicatedJobs").items:
        if place.at("template", "metadata", "labels").mapping.get(_STEP) != "trainer":
            continue
        containers = place.at("template", "spec", "template", "spec", "containers").items
        container = next((item for item in containers if item.at("name").text == "node"), None)
        if container is None or not isinstance(container.value, dict):
            continue
        places = {"image": "image", "command": "command", "args": "args", "resourcesPerNode": "resources"}
        for name, inner in places.items():
            if given.at(name).there:
                _put(container, inner, given.at(name), lines)
        if given.at("env").items:
            own = {item.at("name").text for item in given.at("env").items}
            kept = [item.value for item in container.at("env").items if item.at("name").text not in own]
            _put(container, "env", given.at("env"), lines)
            container.value["env"] = [*container.value["env"], *kept]
    return patched


def _put(container: Field, name: str, given: Field, lines: dict[tuple[str | int, ...], int]) -> None:
    container.value[name] = copy.deepcopy(given.value)
    target = (*container.path, name)
    for path in [path for path in lines if path[: len(target)] == target]:
        del lines[path]
    if given.document.file == container.document.file:
        size = len(given.path)
        lines |= {
            (*target, *path[size:]): line
            for path, line in given.document.lines.items()
            if path[:size] == given.path
        }


def _pytorchjob(document: Document, spec: Field) -> Iterator[PodGroup]:
    roles = _replicas(spec.at("pytorchReplicaSpecs"))
    counts = [_number(replica.at("replicas"), 1) for replica in roles.values()]
    nodes = None if None in counts or spec.at("elasticPolicy").there else sum(count or 0 for count in counts)
    for role, replica in roles.items():
        yield _role(
            document,
            replica,
            role.lower(),
            {"training.kubeflow.org/job-name": document.name},
            has_service=True,
            bare_names=True,
            forever=_always(replica.at("restartPolicy")),
            index="operator",
            sets=frozenset(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", *_PET)),
            nodes=nodes,
            trains=True,
        )


def _mpijob(document: Document, spec: Field) -> Iterator[PodGroup]:
    for role, replica in _replicas(spec.at("mpiReplicaSpecs")).items():
        yield _role(
            document,
            replica,
            role.lower(),
            subdomain=document.name,
            has_service=True,
            forever=_always(replica.at("restartPolicy")) if role == "Launcher" else None,
            index="mpirun",
            trains=True,
            is_worker=role == "Worker",
            sets=frozenset({"MASTER_ADDR", "NNODES", "NODE_RANK"}),
        )


def _volcano(document: Document, spec: Field) -> Iterator[PodGroup]:
    torch = spec.at("plugins", "pytorch").there
    services = spec.at("plugins", "svc").there or torch  # pytorch brings svc
    sets = {"VC_TASK_INDEX", "VK_TASK_INDEX"}
    if torch:
        sets |= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
    for task in spec.at("tasks").items:
        group = _role(
            document,
            task,
            task.at("name").text,
            subdomain=document.name if services else "",
            has_service=services,
            bare_names=services,
            forever=_always(task.at("template", "spec", "restartPolicy")),
            index="VC_TASK_INDEX",
            sets=frozenset(sets),
        )
        yield group if services else replace(group, names=())


def _replicas(specs: Field) -> dict[str, Field]:
    return {str(role): specs.at(role) for role in specs.value} if isinstance(specs.value, dict) else {}


def _role(
    document: Document, owner: Field, role: str, labels: Mapping[str, str] = {}, **known: Any
) -> PodGroup:
    """The replicas of one role, or of one task."""
    count = _number(owner.at("replicas"), 1)
    names = _names(f"{document.name}-{role}-", count)
    return _pods(document, owner, labels, count=count, names=names, **known)


def _always(policy: Field) -> Field | None:
    return policy if policy.text == "Always" else None
