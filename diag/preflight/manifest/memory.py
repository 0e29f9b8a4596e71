"""Shared memory, memory limits, RDMA devices with the right to lock memory for them, and variables that harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diag.knowledge import env_lint
from diag.launch.launchers.command import CommandError
from diag.preflight.estimate import Machine, estimate
from diag.preflight.line import Line, advice_line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.counts import meets
from diag.preflight.manifest.edits import drop_variable, may_lock, mount_shm, put
from diag.preflight.manifest.job import ManifestJob, Manifests, at, report
from diag.preflight.manifest.reading import Field, named, quantity

_SMALL_SHM, _GIB = 1 << 30, 1 << 30
_SHM_GIB = 64  # what the manifests in deploy/ have, for 8 ranks with DataLoader workers


def memory_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if trainer.group.is_worker:
                yield from _shm(trainer)
            if trainer is job.trainers[0]:
                yield from _estimate(trainer)


def _shm_size(trainer: Trainer) -> str:
    """For /dev/shm, whose files count to the container's memory: a quarter of its limit at most."""
    limit = quantity(_limit(trainer).text)
    return f"{_SHM_GIB if limit is None else max(1, min(_SHM_GIB, limit // 4 // _GIB))}Gi"


def _limit(trainer: Trainer) -> Field:
    return trainer.container.at("resources", "limits", "memory")


def _shm(trainer: Trainer) -> Iterator[Line]:
    spec, mounts = trainer.group.spec, trainer.container.at("volumeMounts")
    launch = trainer.facts.launch
    several = (trainer.gpus or 0) > 1 or (launch is not None and (launch.processes or 1) > 1)
    mount = next((item for item in mounts.items if item.at("mountPath").text.rstrip("/") == "/dev/shm"), None)
    if mount is None:
        templates = any(item.is_template for item in (mounts, *mounts.items))
        if trainer.gpus and not spec.at("hostIPC").value and not templates:
            who = "NCCL's buffers and DataLoader workers" if several else "DataLoader workers"
            size = _shm_size(trainer)
            status, edits = "" if several else "note", mount_shm(trainer, size)
            yield report(mounts, "no_shm", status=status, edits=edits, who=who, size=size)
        return
    yield from _mounted_shm(trainer, mount, several=several)


def _mounted_shm(trainer: Trainer, mount: Field, *, several: bool) -> Iterator[Line]:
    volume = named(trainer.group.spec.at("volumes"), mount.at("name").text)
    if volume is None or not volume.at("emptyDir").there:
        return
    size_field, medium = volume.at("emptyDir", "sizeLimit"), volume.at("emptyDir", "medium")
    if medium.text != "Memory" and not medium.is_template:
        yield report(medium, "shm_on_disk")
    size, limit = quantity(size_field.text), quantity(_limit(trainer).text)
    if size is not None and size < _SMALL_SHM and several:
        larger, ranks = _shm_size(trainer), trainer.gpus or "several"
        edits = [put(size_field, larger)]
        yield report(size_field, "shm_small", edits=edits, size=size_field.text, ranks=ranks, larger=larger)
    if size is not None and limit is not None and size >= limit and medium.text == "Memory":
        smaller = _shm_size(trainer)
        values = {"size": size_field.text, "limit": _limit(trainer).text, "smaller": smaller}
        yield report(size_field, "shm_over_limit", edits=[put(size_field, smaller)], **values)


def _estimate(trainer: Trainer) -> Iterator[Line]:
    limit, launch = quantity(_limit(trainer).text), trainer.facts.launch
    if limit is None or launch is None or not trainer.ranks_are_known:
        return
    if launch.program not in ("megatron", "swift"):
        return
    words = [launch.program, launch.verb, *launch.words]
    counts = {"NPROC_PER_NODE": str(launch.processes or 1), "NNODES": str(launch.nodes or 1)}
    machine = Machine(gpus=launch.processes, host_bytes=limit)
    try:
        need = estimate(words, {**launch.environment, **counts}, machine=machine, with_advice=False)
    except (CommandError, ValueError, OSError):
        return
    if need.host_verdict == "does not fit":
        peak = need.host_bytes + need.save_bytes
        about = need.trust.host
        gib, field = -(-int(peak * (1 + about)) // (1 << 30)), _limit(trainer)
        values: dict[str, Any] = {"limit": field.text, "peak": peak, "uncertainty": about, "gib": gib}
        yield report(field, "memory_limit", edits=[put(field, f"{gib}Gi")], **values)


def network_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if not trainer.group.is_worker or trainer.is_privileged:
                continue
            rdma, security = trainer.rdma, trainer.container.at("securityContext")
            if rdma is None:
                yield from _no_rdma(trainer, job, manifests)
            elif trainer.capabilities & {"IPC_LOCK", "ALL"}:
                if trainer.user:
                    yield report(security.at("capabilities", "add"), "lock_user", user=trainer.user)
            elif trainer.user:
                yield report(rdma, "lock_runtime", user=trainer.user)
            elif "efa" not in str(rdma.path[-1]):
                yield report(security, "lock_root", edits=may_lock(trainer), device=rdma.path[-1])


# What a cluster's admin hands out under a name of its own choice (k8s-rdma-shared-dev-plugin's documentation).
_EXAMPLE = "rdma/hca_shared_devices_a"
_NO_RDMA = "none"
# Variables that choose another network than NCCL's own.
_OTHER_NETWORK = ("NCCL_NET", "NCCL_NET_PLUGIN")


def _no_rdma(trainer: Trainer, job: ManifestJob, manifests: Manifests) -> Iterator[Line]:
    """GPUs of several nodes, and no RDMA device. A second network, a claim of a device or another network of NCCL's
    is somebody's choice."""
    if (job.pods or 1) < 2 or not trainer.gpus or job.is_one_node(trainer):
        return
    if not trainer.meeting.nodes_from and not meets(trainer):
        return  # each on its own, as a sweep is
    annotations = trainer.group.metadata.at("annotations").mapping
    if any("networks" in str(name) or "networking.gke.io" in str(name) for name in annotations):
        return
    chosen = any(trainer.environment.get(name) for name in _OTHER_NETWORK)
    if chosen or trainer.container.at("resources", "claims").items:
        return
    resource = manifests.rdma
    if resource == _NO_RDMA:
        if trainer is job.trainers[0]:
            yield report(trainer.gpus_field, "tcp_only", pods=job.pods)
        return
    limits = trainer.container.at("resources", "limits")
    edits = [put(limits.at(resource), 1), *may_lock(trainer)] if resource else []
    values: dict[str, Any] = {"pods": job.pods, "resource": resource or _EXAMPLE}
    key = "no_rdma" if not trainer.user else "no_rdma_user"
    yield report(trainer.gpus_field, key, edits=edits, user=trainer.user, **values)


def environment_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            given = trainer.environment.items()
            known = {name: value for name, value in given if "\x01" not in value and "$" not in value}
            nodes = job.pods if job.pods is not None and job.pods > 1 else job.nodes_of(trainer)
            rdma = False if manifests.rdma == _NO_RDMA else True if trainer.rdma is not None else None
            for advice in env_lint.lint(known, nodes=nodes, nccl_version=None, rdma=rdma):
                setting, edits = (
                    f"{advice.variable}={advice.value}",
                    drop_variable(trainer, advice.variable, advice.value),
                )
                yield at(trainer.place(advice.variable), advice_line("", setting, advice), edits)
