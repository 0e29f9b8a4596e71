"""The network part of `diag doctor`: variables, interfaces, RDMA, rendezvous. A new check is a file and a
line here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from diag.preflight import environment, interfaces, rdma, rendezvous
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan, make_plan

CHECKS: tuple[Callable[[LaunchPlan], Iterable[Line]], ...] = (
    environment.check_environment,
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
