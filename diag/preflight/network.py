"""The network part of `diag doctor`: variables, interfaces, RDMA, rendezvous. A new check is a file and a
line here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from diag.knowledge import env_lint, table
from diag.preflight import interfaces, rdma, rendezvous
from diag.preflight.line import Line, advice_line, line
from diag.preflight.plan import LaunchPlan, make_plan

_LOOPBACK = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check_environment(plan: LaunchPlan) -> Iterator[Line]:
    """The environment lint before the run: variables of the environment, of `env A=B` in front of CMD and of
    NCCL's own files.

    Where the number of nodes is not known, what matters between nodes only is judged as if there were
    several."""
    quiet = True
    env, version = plan.environment, plan.nccl_version
    for advice in env_lint.lint(env, nodes=plan.nodes, nccl_version=version, rdma=plan.rdma):
        if advice.variable in _LOOPBACK and advice.id == "env-harmful":
            continue  # the interface checks report it, with what is there
        quiet = False
        yield advice_line("environment", plan.setting_of(advice.variable), advice)
    yield from _of_no_trainer(plan)
    said = "no harmful or ineffective NCCL or torch.distributed variable"
    if plan.command.environment_unseen:
        unseen = f"what CMD itself sets: {plan.command.environment_unseen}"
        yield Line("environment", "not checked", unseen + (f"; otherwise {said}" if quiet else ""))
    elif quiet:
        yield Line("environment", "ok", said)


def _of_no_trainer(plan: LaunchPlan) -> Iterator[Line]:
    """Names that guides give to ms-swift, which does not read them; a script of one's own may."""
    launch = plan.launch
    if launch is None or launch.program not in ("swift", "megatron"):
        return
    for name, instead in table("trainer_variables")["invented"].items():
        if plan.environment.get(name):
            setting = plan.setting_of(name)
            yield line("variables.not-by-trainer", setting=setting, program=launch.program, instead=instead)


CHECKS: tuple[Callable[[LaunchPlan], Iterable[Line]], ...] = (
    check_environment,
    interfaces.check_nccl_interface,
    interfaces.check_gloo_interface,
    rdma.check_rdma,
    rendezvous.check_rendezvous,
)


def check_network(
    command: Sequence[str],
    wait_seconds: float = 0.0,
    env: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[Line]:
    """`wait_seconds`: how long node 0 listens for the others on CMD's port, and the others try to reach it;
    0: one try."""
    plan = make_plan(command, os.environ if env is None else env, wait_seconds, clock)
    for check in CHECKS:
        yield from check(plan)
