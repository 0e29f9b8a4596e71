"""A training that ended well and is started again, and pods that wait for others which never start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diag.preflight.line import Line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, report
from diag.preflight.manifest.pods import FOREVER


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
    if group.kind in FOREVER:
        values: dict[str, Any] = {
            "kind": group.kind,
            "pods": job.pods or "N",
            "subdomain": group.subdomain or "SERVICE",
        }
        yield report(group.forever, "restarted_by_kind", **values)
    else:
        default = "" if group.forever.there else " (the default of a Pod)"
        yield report(group.forever, "restarted_by_kubelet", default=default)


def _job_policy(trainer: Trainer) -> Iterator[Line]:
    policy = trainer.group.spec.at("restartPolicy")
    if policy.is_template or policy.text in ("Never", "OnFailure"):
        return
    if policy.there or trainer.group.kind != "JobSet":
        text = policy.text if policy.there else "it is missing, and the default is Always"
        yield report(policy, "job_policy", policy=text)


def _all_at_once(trainer: Trainer, job: ManifestJob) -> Iterator[Line]:
    owner, nodes = trainer.group.owner, job.nodes_of(trainer)
    completions, parallelism = owner.at("completions"), owner.at("parallelism")
    wanted = completions.number
    together = parallelism.number if parallelism.there else 1
    joined = (nodes or 1) > 1 or trainer.group.spec.at("subdomain").there or "MASTER_ADDR" in trainer.fields
    if wanted is None or together is None or together >= wanted or not joined:
        return
    place, default = (parallelism, "") if parallelism.there else (completions, " (the default)")
    yield report(place, "not_all_at_once", together=together, wanted=wanted, default=default)
