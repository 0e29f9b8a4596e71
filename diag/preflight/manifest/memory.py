"""Shared memory, memory limits, RDMA devices with the right to lock memory for them, and variables that harm."""

from __future__ import annotations

from collections.abc import Iterator

from diag.knowledge import env_lint
from diag.launch.launchers.command import CommandError
from diag.preflight.estimate import Machine, estimate
from diag.preflight.line import Line, advice_line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, at, report
from diag.preflight.manifest.reading import Field, named, quantity

_SMALL_SHM = 1 << 30


def memory_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if trainer.group.is_worker:
                yield from _shm(trainer)
            if trainer is job.trainers[0]:
                yield from _estimate(trainer)


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
            yield report(mounts, "no_shm", status="" if several else "note", who=who)
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
        yield report(size_field, "shm_small", size=size_field.text, ranks=trainer.gpus or "several")
    if size is not None and limit is not None and size >= limit and medium.text == "Memory":
        yield report(size_field, "shm_over_limit", size=size_field.text, limit=_limit(trainer).text)


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
        yield report(field, "memory_limit", limit=field.text, peak=peak, uncertainty=about, gib=gib)


def network_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if not trainer.group.is_worker or trainer.is_privileged:
                continue
            rdma, security = trainer.rdma, trainer.container.at("securityContext")
            if rdma is None:
                if trainer is job.trainers[0]:
                    yield from _no_rdma(trainer, job)
            elif trainer.capabilities & {"IPC_LOCK", "ALL"}:
                if trainer.user:
                    yield report(security.at("capabilities", "add"), "lock_user", user=trainer.user)
            elif trainer.user:
                yield report(rdma, "lock_runtime", user=trainer.user)
            elif "efa" not in str(rdma.path[-1]):
                yield report(security, "lock_root", device=rdma.path[-1])


def _no_rdma(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    if (job.pods or 1) < 2 or not trainer.gpus or job.is_one_node(trainer):
        return
    annotations = trainer.group.owner.at("template", "metadata", "annotations").mapping
    if not any("networks" in str(name) or "networking.gke.io" in str(name) for name in annotations):
        yield report(trainer.gpus_field, "no_rdma", pods=job.pods)


def environment_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        seen: set[str] = set()
        for trainer in job.trainers:
            given = trainer.environment.items()
            known = {name: value for name, value in given if "\x01" not in value and "$" not in value}
            nodes = job.pods if job.pods is not None and job.pods > 1 else job.nodes_of(trainer)
            for advice in env_lint.lint(
                known, nodes=nodes, nccl_version=None, rdma=True if trainer.rdma is not None else None
            ):
                if advice.variable in seen:
                    continue
                seen.add(advice.variable)
                setting = f"{advice.variable}={advice.value}"
                yield at(trainer.place(advice.variable), advice_line("", setting, advice))
