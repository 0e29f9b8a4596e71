"""The environment lint before the run: variables of the environment, of `env A=B` in front of CMD and of
NCCL's own files."""

from __future__ import annotations

from collections.abc import Iterator

from diag.knowledge import env_lint
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan

_LOOPBACK = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check_environment(plan: LaunchPlan) -> Iterator[Line]:
    """Where the number of nodes is not known, what matters between nodes only is judged as if there were
    several."""
    quiet = True
    for advice in env_lint.lint(
        plan.environment, nodes=plan.nodes, nccl_version=plan.nccl_version, rdma=plan.rdma
    ):
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
    said = "no variable of NCCL or torch.distributed that harms or does nothing"
    if plan.environment_unseen:
        yield Line(
            "environment",
            "not checked",
            f"what CMD itself sets: {plan.environment_unseen}" + (f"; else {said}" * quiet),
        )
    elif quiet:
        yield Line("environment", "ok", said)
