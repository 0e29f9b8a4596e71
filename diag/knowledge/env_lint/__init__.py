"""What is wrong with a job's environment variables: advice once copied that harms, or that nothing reads.
Pure.

Says what a variable really does and what to do instead; whoever calls knows where it was set (environment,
nccl.conf). A variable that may belong to a plugin of NCCL, or to the job's own code, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diag.knowledge.env_lint.advice import Advice, LintedJob, number
from diag.knowledge.env_lint.harmful import HARMFUL
from diag.knowledge.env_lint.no_effect import NO_EFFECT

__all__ = ["Advice", "lint", "number"]


def lint(
    environment: Mapping[str, str],
    *,
    nodes: int | None,
    nccl_version: tuple[int, ...] | None,
    rdma: bool | None,
) -> Iterator[Advice]:
    """At most one advice a variable, the harmful ones first.

    `nodes` of the job, `nccl_version` such as (2, 27, 5), `rdma` whether this node has RDMA devices; None for
    what is not known.

    >>> [a.variable for a in lint({"NCCL_TIMEOUT": "3600", "NCCL_IB_DISABLE": "1"}, nodes=2, nccl_version=None, rdma=True)]
    ['NCCL_IB_DISABLE', 'NCCL_TIMEOUT']
    """
    job = LintedJob(environment, nodes, nccl_version, rdma)
    told = set()
    for check in (*HARMFUL, *NO_EFFECT):
        for advice in check(job):
            if advice.variable not in told:
                told.add(advice.variable)
                yield advice
