"""That this node is the only one of the job has to be shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from diag.agent.act.fence import Fence


def fence(hosts: list[str], world: int, *, several: bool = False) -> Fence:
    ranks = {
        number: SimpleNamespace(placement=SimpleNamespace(host=host)) for number, host in enumerate(hosts)
    }
    engine: Any = SimpleNamespace(job=SimpleNamespace(ranks=ranks, world_size=world))
    return Fence(engine, "gpu-1", lambda: several)


def test_a_job_whose_ranks_are_all_here_has_no_other_node() -> None:
    assert fence(["gpu-1"] * 8, 8).closed() == ""


@pytest.mark.parametrize(
    ("hosts", "world", "several", "why"),
    [
        (["gpu-1"] * 8, 16, False, "only 8 of 16 ranks are seen on this node"),
        (["gpu-1", "gpu-2"], 2, False, "only 1 of 2 ranks"),
        ([], 0, False, "only 0 of 0 ranks"),
        (["gpu-1"] * 8, 8, True, "the job has other nodes, and no lease"),
    ],
)
def test_anything_else_is_several_nodes(hosts: list[str], world: int, several: bool, why: str) -> None:
    """`--nodes off` too, and a rank that was not found."""
    assert why in fence(hosts, world, several=several).closed()
