"""Variables of NCCL and torch.distributed in a manifest that harm, or that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

from diag.knowledge import env_lint
from diag.preflight.line import Line
from diag.preflight.manifest.job import Manifests, field_line


def environment_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        seen: set[str] = set()
        for trainer in job.trainers:
            known = {
                name: value
                for name, value in trainer.environment.items()
                if "\x01" not in value and "$" not in value
            }
            nodes = job.pods if job.pods is not None and job.pods > 1 else job.nodes_of(trainer)
            for advice in env_lint.lint(
                known, nodes=nodes, nccl_version=None, rdma=True if trainer.rdma is not None else None
            ):
                if advice.variable in seen:
                    continue
                seen.add(advice.variable)
                yield field_line(
                    trainer.place(advice.variable),
                    "problem" if advice.severity.counts else "note",
                    f"{advice.variable}={advice.value}: {advice.does}",
                    advice.instead,
                    advice.id,
                    advice.severity.value,
                )
