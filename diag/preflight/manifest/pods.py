"""What each kind of manifest makes: how many pods, by which names, who restarts them, what it tells them.
Judges nothing.

By the controllers' own sources: Kubernetes 1.29-1.33 (Job, StatefulSet), JobSet v1alpha2, Kubeflow
training-operator 1.9 and Trainer 2.3, MPI operator v2beta1, Volcano 1.10.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diag.preflight.manifest.reading import Document, Field

_MOST_NAMES = 4096
_PET = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE")
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
FOREVER = ("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet")
WORKLOADS = (
    "Job",
    "CronJob",
    "JobSet",
    "Pod",
    "PyTorchJob",
    "TrainJob",
    "TrainingRuntime",
    "ClusterTrainingRuntime",
    "MPIJob",
    *FOREVER,
)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods of one template.

    `owner` is the field that the controller's own settings lie in (a Job's spec). `count` is how many run at
    the same time, None where it is not known. `names` are their host names, empty where they are random.
    `subdomain` is the headless Service that makes these resolve; `has_service` where the controller makes it.
    `forever` is what starts a pod again that ended well. `index` is what each pod's number is known by.
    `tells` are variables that the controller sets.
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
    tells: frozenset[str] = field(default_factory=frozenset)
    nodes: int | None = None  # that PET_NNODES tells
    trains: bool = False  # it is of a kind that is for training only
    is_worker: bool = True  # not the launcher of mpirun

    @property
    def kind(self) -> str:
        return self.document.kind

    @property
    def containers(self) -> list[Field]:
        return [item for part in ("initContainers", "containers") for item in self.spec.at(part).items]

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Whether a selector chooses these pods; an empty one chooses none."""
        return bool(wanted) and all(self.labels.get(name) == value for name, value in wanted.items())


def pod_groups(documents: Sequence[Document]) -> list[PodGroup]:
    groups: list[PodGroup] = []
    for document in documents:
        groups += _of_document(document, documents)
    return groups


def _of_document(document: Document, documents: Sequence[Document]) -> Iterator[PodGroup]:
    root, name = document.root, document.name
    spec = root.at("spec")
    if document.kind == "Job" and document.group == "batch.volcano.sh":
        yield from _volcano(document, spec)
    elif document.kind == "Job":
        yield _job(document, spec, name)
    elif document.kind == "CronJob":
        yield _job(document, spec.at("jobTemplate", "spec"), name)
    elif document.kind == "Pod":
        policy = spec.at("restartPolicy")
        hostname = spec.at("hostname").text
        yield PodGroup(
            document,
            spec,
            spec,
            root.at("metadata", "labels").mapping,
            1,
            (hostname,) if hostname else (),
            spec.at("subdomain").text,
            forever=policy if policy.text in ("Always", "") and not policy.is_template else None,
        )
    elif document.kind in FOREVER:
        yield _forever(document, spec, name)
    elif document.kind == "JobSet":
        yield from _jobset(document, spec, name)
    elif document.kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
        if not any(other.kind == "TrainJob" and _runtime_of(other, (document,)) for other in documents):
            yield from _runtime(document, None)
    elif document.kind == "TrainJob":
        runtime = _runtime_of(document, documents)
        if runtime is not None:
            yield from _runtime(runtime, document)
    elif document.kind == "PyTorchJob":
        yield from _pytorchjob(document, spec, name)
    elif document.kind == "MPIJob":
        for role, replica in _replicas(spec.at("mpiReplicaSpecs")):
            yield PodGroup(
                document,
                replica,
                replica.at("template", "spec"),
                replica.at("template", "metadata", "labels").mapping,
                _number(replica.at("replicas"), 1),
                _numbered(f"{name}-{role.lower()}-", replica),
                name,
                has_service=True,
                forever=_always(replica.at("restartPolicy")) if role == "Launcher" else None,
                index="mpirun",
                trains=True,
                is_worker=role == "Worker",
                tells=frozenset({"MASTER_ADDR", "NNODES", "NODE_RANK"}),
            )


def _job(document: Document, spec: Field, name: str) -> PodGroup:
    template = spec.at("template")
    indexed = spec.at("completionMode").text == "Indexed"
    completions, parallelism = spec.at("completions"), spec.at("parallelism")
    count = _number(parallelism, 1)
    wanted = _number(completions, count) if indexed or completions.there else count
    names = tuple(f"{name}-{index}" for index in range(min(wanted or 0, _MOST_NAMES))) if indexed else ()
    labels = {
        **template.at("metadata", "labels").mapping,
        "job-name": name,
        "batch.kubernetes.io/job-name": name,
    }
    return PodGroup(
        document,
        spec,
        template.at("spec"),
        labels,
        wanted,
        names,
        template.at("spec", "subdomain").text,
        index="JOB_COMPLETION_INDEX" if indexed else "",
        tells=frozenset({"JOB_COMPLETION_INDEX"} if indexed else ()),
    )


def _forever(document: Document, spec: Field, name: str) -> PodGroup:
    template = spec.at("template")
    is_set = document.kind == "StatefulSet"
    count = None if document.kind == "DaemonSet" else _number(spec.at("replicas"), 1)
    names = tuple(f"{name}-{index}" for index in range(min(count or 0, _MOST_NAMES))) if is_set else ()
    return PodGroup(
        document,
        spec,
        template.at("spec"),
        template.at("metadata", "labels").mapping,
        count,
        names,
        spec.at("serviceName").text if is_set else template.at("spec", "subdomain").text,
        forever=document.root.at("kind"),
        index="pod-index" if is_set else "",
    )


def _jobset(document: Document, spec: Field, name: str) -> Iterator[PodGroup]:
    network = spec.at("network")
    has_names = network.at("enableDNSHostnames").text != "false"
    for job in spec.at("replicatedJobs").items:
        inner = _job(document, job.at("template", "spec"), name)
        indexed = job.at("template", "spec", "completionMode").text in ("Indexed", "")  # JobSet's default
        replicas, pods = _number(job.at("replicas"), 1), inner.count
        names = (
            tuple(
                f"{name}-{job.at('name').text}-{index}-{pod}"
                for index in range(min(replicas or 0, _MOST_NAMES))
                for pod in range(min(pods or 0, _MOST_NAMES))
            )[:_MOST_NAMES]
            if indexed and has_names
            else ()
        )
        count = replicas * pods if replicas is not None and pods is not None else None
        yield replace(
            inner,
            owner=job.at("template", "spec"),
            count=count,
            names=names,
            subdomain=network.at("subdomain").text or name,
            has_service=has_names,
            index="jobset" if (replicas or 1) > 1 else "JOB_COMPLETION_INDEX" if indexed else "",
            labels={**inner.labels, "jobset.sigs.k8s.io/jobset-name": name},
            tells=frozenset({"JOB_COMPLETION_INDEX"} if indexed else ()),
        )


def _runtime_of(job: Document, documents: Sequence[Document]) -> Document | None:
    reference = job.root.at("spec", "runtimeRef")
    kind = reference.at("kind").text or "ClusterTrainingRuntime"
    return next(
        (other for other in documents if other.kind == kind and other.name == reference.at("name").text), None
    )


def _runtime(runtime: Document, job: Document | None) -> Iterator[PodGroup]:
    """The operator sets parallelism and completions to the number of nodes in the job whose ancestor step is
    trainer."""
    document = _patched(runtime, job) if job is not None else runtime
    spec = document.root.at("spec")
    told = job.root.at("spec", "trainer", "numNodes") if job is not None else None
    nodes = told if told is not None and told.there else spec.at("mlPolicy", "numNodes")
    for group in _jobset(document, spec.at("template", "spec"), document.name):
        trainer = (
            document.root.at(*group.owner.path[:-1], "metadata", "labels").mapping.get(_STEP) == "trainer"
        )
        count = _number(nodes, 1) if trainer else group.count
        prefix = group.names[0].rpartition("-")[0] if group.names else ""
        names = tuple(f"{prefix}-{index}" for index in range(min(count or 0, _MOST_NAMES))) if prefix else ()
        yield replace(
            group,
            count=count,
            nodes=count,
            names=names,
            trains=trainer,
            index="JOB_COMPLETION_INDEX",
            tells=frozenset((*group.tells, *(_PET if spec.at("mlPolicy", "torch").there else ()))),
        )


def _patched(runtime: Document, job: Document) -> Document:
    """The runtime with what the TrainJob gives in the place of its container's image, command, variables and
    devices."""
    value = copy.deepcopy(dict(runtime.value))
    value["kind"], value["metadata"] = job.kind, job.value.get("metadata")
    lines = dict(runtime.lines)
    given = job.root.at("spec", "trainer")
    for place in (
        Document(runtime.file, value, lines).root.at("spec", "template", "spec", "replicatedJobs").items
    ):
        if place.at("template", "metadata", "labels").mapping.get(_STEP) != "trainer":
            continue
        containers = place.at("template", "spec", "template", "spec", "containers").items
        container = next((item for item in containers if item.at("name").text == "node"), None)
        if container is None or not isinstance(container.value, dict):
            continue
        for name, inner in (
            ("image", "image"),
            ("command", "command"),
            ("args", "args"),
            ("resourcesPerNode", "resources"),
        ):
            if given.at(name).there:
                _put(container, inner, given.at(name), lines)
        if given.at("env").items:
            own = {item.at("name").text for item in given.at("env").items}
            kept = [item.value for item in container.at("env").items if item.at("name").text not in own]
            _put(container, "env", given.at("env"), lines)
            container.value["env"] = [*container.value["env"], *kept]
    return Document(runtime.file, value, lines)


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


def _pytorchjob(document: Document, spec: Field, name: str) -> Iterator[PodGroup]:
    tells = frozenset(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", *_PET))
    counts = [_number(replica.at("replicas"), 1) for _, replica in _replicas(spec.at("pytorchReplicaSpecs"))]
    nodes = None if None in counts or spec.at("elasticPolicy").there else sum(count or 0 for count in counts)
    for role, replica in _replicas(spec.at("pytorchReplicaSpecs")):
        labels = {
            **replica.at("template", "metadata", "labels").mapping,
            "training.kubeflow.org/job-name": name,
        }
        yield PodGroup(
            document,
            replica,
            replica.at("template", "spec"),
            labels,
            _number(replica.at("replicas"), 1),
            _numbered(f"{name}-{role.lower()}-", replica),
            "",
            True,
            True,
            _always(replica.at("restartPolicy")),
            "operator",
            tells,
            nodes,
            trains=True,
        )


def _volcano(document: Document, spec: Field) -> Iterator[PodGroup]:
    services = spec.at("plugins", "svc").there or spec.at("plugins", "pytorch").there  # pytorch brings svc
    tells = {"VC_TASK_INDEX", "VK_TASK_INDEX"}
    if spec.at("plugins", "pytorch").there:
        tells |= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
    for task in spec.at("tasks").items:
        name = task.at("name").text
        yield PodGroup(
            document,
            task,
            task.at("template", "spec"),
            task.at("template", "metadata", "labels").mapping,
            _number(task.at("replicas"), 1),
            _numbered(f"{document.name}-{name}-", task) if services else (),
            document.name if services else "",
            services,
            services,
            _always(task.at("template", "spec", "restartPolicy")),
            "VC_TASK_INDEX",
            frozenset(tells),
        )


def _replicas(specs: Field) -> Iterator[tuple[str, Field]]:
    if isinstance(specs.value, dict):
        for role in specs.value:
            yield str(role), specs.at(role)


def _numbered(prefix: str, replica: Field) -> tuple[str, ...]:
    return tuple(
        f"{prefix}{index}" for index in range(min(_number(replica.at("replicas"), 1) or 0, _MOST_NAMES))
    )


def _always(policy: Field) -> Field | None:
    return policy if policy.text == "Always" else None


def _number(told: Field, default: int | None) -> int | None:
    """The default where nothing is said; None where it is filled in later."""
    return told.number if told.there else default
