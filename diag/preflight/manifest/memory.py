"""Shared memory, memory limits, RDMA devices and the right to lock memory for them."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.estimate import EstimateError, Machine, estimate
from diag.preflight.estimate.estimate import HOST_UNCERTAINTY
from diag.preflight.line import Line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, told
from diag.preflight.manifest.quantity import quantity
from diag.preflight.manifest.reading import Field
from diag.text.units import format_bytes, format_ratio

_SMALL_SHM = 1 << 30


def memory_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if trainer.group.is_worker:
                yield from _shm(trainer)
            if trainer is job.trainers[0]:
                yield from _estimate(trainer, job)


def _several_ranks(trainer: Trainer) -> bool:
    launch = trainer.facts.launch
    return (trainer.gpus or 0) > 1 or (launch is not None and (launch.processes or 1) > 1)


def _limit(trainer: Trainer) -> Field:
    return trainer.container.at("resources", "limits", "memory")


def _shm(trainer: Trainer) -> Iterator[Line]:
    spec, container = trainer.group.spec, trainer.container
    mount = next(
        (
            item
            for item in container.at("volumeMounts").items
            if item.at("mountPath").text.rstrip("/") == "/dev/shm"
        ),
        None,
    )
    if mount is None:
        if (
            trainer.gpus
            and not spec.at("hostIPC").value
            and not any(
                item.is_template
                for item in (container.at("volumeMounts"), *container.at("volumeMounts").items)
            )
        ):
            who = "NCCL's buffers and DataLoader workers" if _several_ranks(trainer) else "DataLoader workers"
            yield told(
                container.at("volumeMounts"),
                "problem" if _several_ranks(trainer) else "note",
                f"nothing is mounted on /dev/shm, which has 64 MiB then: {who} need more",
                "volumeMounts:\n- {name: shm, mountPath: /dev/shm}\nand in the pod's spec:\nvolumes:\n"
                "- {name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}",
                "shm-too-small",
            )
        return
    volume = next(
        (item for item in spec.at("volumes").items if item.at("name").text == mount.at("name").text), None
    )
    if volume is None or not volume.at("emptyDir").there:
        return
    size_field, medium = volume.at("emptyDir", "sizeLimit"), volume.at("emptyDir", "medium")
    if medium.text != "Memory" and not medium.is_template:
        yield told(
            medium,
            "note",
            "/dev/shm lies on the node's disk: what workers hand over to the ranks is written there",
            "emptyDir: {medium: Memory, sizeLimit: 64Gi}",
            "shm-too-small",
        )
    size, limit = quantity(size_field.text), quantity(_limit(trainer).text)
    if size is not None and size < _SMALL_SHM and _several_ranks(trainer):
        yield told(
            size_field,
            "problem",
            f"{size_field.text} for {trainer.gpus or 'several'} ranks, their NCCL and their DataLoader workers",
            "sizeLimit: 64Gi",
            "shm-too-small",
        )
    if size is not None and limit is not None and size >= limit and medium.text == "Memory":
        yield told(
            size_field,
            "problem",
            f"{size_field.text}, and files in /dev/shm count to the container's memory limit of "
            f"{_limit(trainer).text}: the trainer is killed before it is full",
            f"memory: a limit of what the ranks need and {size_field.text} more, or a smaller sizeLimit",
            "host-oom",
        )


def _estimate(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    limit, launch = quantity(_limit(trainer).text), trainer.facts.launch
    if (
        limit is None
        or launch is None
        or launch.program not in ("megatron", "swift")
        or not trainer.ranks_are_known
    ):
        return
    words = [launch.program, launch.verb, *launch.words]
    environment = {
        **launch.environment,
        "NPROC_PER_NODE": str(launch.processes or 1),
        "NNODES": str(launch.nodes or 1),
    }
    try:
        need = estimate(
            words, environment, machine=Machine(gpus=launch.processes, host_bytes=limit), with_advice=False
        )
    except (EstimateError, ValueError, OSError):
        return
    peak = need.host_bytes + need.save_bytes
    if need.host_verdict == "does not fit":
        yield told(
            _limit(trainer),
            "problem",
            f"{_limit(trainer).text}, and CMD needs about {format_bytes(peak)} of host memory on a node while "
            f"it saves a checkpoint (+- {format_ratio(HOST_UNCERTAINTY)}; diag estimate)",
            f"memory: {-(-int(peak * (1 + HOST_UNCERTAINTY)) // (1 << 30))}Gi and more, or what `diag estimate -- CMD` advises",
            "host-oom-forecast",
        )


def network_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if not trainer.group.is_worker or trainer.is_privileged:
                continue
            if trainer.rdma is None:
                if trainer is job.trainers[0]:
                    yield from _no_rdma(trainer, job)
                continue
            if "IPC_LOCK" in trainer.capabilities or "ALL" in trainer.capabilities:
                if trainer.user:
                    yield told(
                        trainer.container.at("securityContext", "capabilities", "add"),
                        "note",
                        f"Kubernetes gives added capabilities to root's processes alone: user {trainer.user} may lock what the "
                        "node's container runtime allows",
                        "LimitMEMLOCK=infinity for containerd on the nodes, or runAsUser: 0",
                        "memlock-limit",
                    )
            elif trainer.user:
                yield told(
                    trainer.rdma,
                    "note",
                    f"user {trainer.user} may lock the memory that the node's container runtime allows; RDMA needs it unlimited",
                    "LimitMEMLOCK=infinity for containerd on the nodes",
                    "memlock-limit",
                )
            elif "efa" not in str(trainer.rdma.path[-1]):
                yield told(
                    trainer.container.at("securityContext"),
                    "problem",
                    f"{trainer.rdma.path[-1]} is asked for and IPC_LOCK is not: RDMA may lock no more than the runtime's limit "
                    "(8 MiB in many), and NCCL fails or takes sockets",
                    "securityContext:\n  capabilities:\n    add: [IPC_LOCK]",
                    "memlock-limit",
                )


def _no_rdma(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    if (job.pods or 1) < 2 or not trainer.gpus or job.is_one_node(trainer):
        return
    annotations = trainer.group.owner.at("template", "metadata", "annotations").mapping
    if any("networks" in str(name) or "networking.gke.io" in str(name) for name in annotations):
        return
    yield told(
        trainer.gpus_field,
        "note",
        f"{job.pods} nodes, and no RDMA device is asked for: NCCL takes TCP sockets between them",
        "where the cluster has RDMA, its resource's name is in kubectl get nodes -o yaml, under allocatable:\n"
        "limits:\n  rdma/hca_shared_devices_a: 1",
        "ib-fallback",
    )
