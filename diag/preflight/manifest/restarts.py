"""A training that ended well and is started again, and pods that wait for others which never start."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.line import Line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, told


def restart_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            yield from _for_ever(trainer, job)
            if trainer.group.document.kind in ("Job", "CronJob", "JobSet") and not trainer.group.trains:
                yield from _job_policy(trainer)
                yield from _all_at_once(trainer, job)


def _for_ever(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    group = trainer.group
    if group.forever is None or trainer.waits:
        return
    if group.kind in ("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet"):
        number = job.pods or "N"
        yield told(
            group.forever,
            "problem",
            f"a {group.kind} starts every pod again, whatever its exit code: a training that ended well is run anew, for ever",
            "a kind that knows an end:\n"
            f"apiVersion: batch/v1\nkind: Job\nspec:\n  completionMode: Indexed\n  completions: {number}\n"
            f"  parallelism: {number}\n  backoffLimit: 0\n  template:\n    spec:\n      restartPolicy: Never\n"
            f"      subdomain: {group.subdomain or 'SERVICE'}",
            "restarted-after-success",
        )
        return
    default = "" if group.forever.there else " (the default of a Pod)"
    yield told(
        group.forever,
        "problem",
        f"Always{default}: the kubelet starts the trainer again after exit code 0 too",
        "restartPolicy: Never",
        "restarted-after-success",
    )


def _job_policy(trainer: Trainer) -> Iterator[Line]:
    policy = trainer.group.spec.at("restartPolicy")
    if (
        policy.is_template
        or policy.text in ("Never", "OnFailure")
        or (not policy.there and trainer.group.kind == "JobSet")
    ):
        return
    said = f"{policy.text}: " if policy.there else "it is missing, and the default is Always: "
    yield told(
        policy,
        "problem",
        f"{said}Kubernetes refuses a Job whose pods are started again after they ended well",
        "restartPolicy: Never",
        "restarted-after-success",
    )


def _all_at_once(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    owner, nodes = trainer.group.owner, job.nodes_of(trainer)
    completions, parallelism = owner.at("completions"), owner.at("parallelism")
    wanted = completions.number
    together = parallelism.number if parallelism.there else 1
    joined = (nodes or 1) > 1 or trainer.group.spec.at("subdomain").there or "MASTER_ADDR" in trainer.fields
    if wanted is None or together is None or together >= wanted or not joined:
        return
    said = f"{together} of {wanted} pods run at the same time" + (
        "" if parallelism.there else " (the default)"
    )
    yield told(
        parallelism if parallelism.there else completions,
        "problem",
        f"{said}, and these wait for the others, which start when these have ended",
        f"parallelism: {wanted}",
        "rendezvous-failure",
        "critical",
    )
