"""What to change so that NCCL uses RDMA, by the cause and by where the rank runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from diag.detectors.findings import load, row, with_words
from diag.state.view import JobView


def place_of(job: JobView, rank: int) -> Mapping[str, str]:
    """How to change things where this rank runs (kubernetes, docker, podman, slurm, else bare or not known):
    words for the advice of a finding."""
    state = job.ranks.get(rank)
    place = ""
    if state is not None and state.rdma is not None and state.rdma.container:
        place = state.rdma.container
    elif state is not None and "KUBERNETES_SERVICE_HOST" in state.variables:
        place = "kubernetes"
    elif state is not None and "SLURM_JOB_ID" in state.variables:
        place = "slurm"
    return cast("Mapping[str, str]", load("network/places.yaml")[place])


def advice_for(cause: str, job: JobView, rank: int) -> str:
    """The remedy for a cause of docs/reference/network.md, for the place where this rank runs."""
    return with_words(row("ib-fallback", cause)["advice"], place_of(job, rank))
