"""The environment lint before the run: variables of the environment, of `env A=B` in front of CMD and of NCCL's own files."""

from __future__ import annotations

from collections.abc import Iterator

from diag import envlint
from diag.preflight.line import Line
from diag.preflight.plan import Plan

__all__ = ["check_environment"]

_LOOPBACK = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check_environment(plan: Plan) -> Iterator[Line]:
    """Without CMD nothing is known of the number of nodes: what matters between nodes only is then judged as if there were."""
    nodes = plan.nodes if plan.given or plan.nodes > 1 else None
    quiet = True
    for advice in envlint.lint(plan.environment, nodes=nodes, nccl_version=plan.nccl_version, rdma=plan.rdma):
        if advice.variable in _LOOPBACK and advice.id == "env-harmful":
            continue  # the interface checks say it, with what is there
        quiet = False
        yield Line(
            "environment",
            "problem" if advice.severity.counts else "note",
            f"{plan.said_of(advice.variable)}: {advice.does}",
            advice.instead,
            advice.id,
            advice.severity.value,
        )
    if quiet:
        yield Line("environment", "ok", "no variable of NCCL or torch.distributed that harms or does nothing")
