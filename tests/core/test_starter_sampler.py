"""When the stack of a launcher is read: of a suspected job of which ranks are missing, and never diag's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diag.agent.samplers.context import NodeContext
from diag.agent.samplers.sampler import Reporter
from diag.agent.samplers.starter import StarterSampler
from diag.model import Record
from tests.facts import Story, pid_of, tree

STARTER = 600


def asked(*, closer: bool = True, world: int = 2, root: int = 500, parent: int = STARTER) -> list[Record]:
    story = Story(world=1)
    story.engine.job.ranks.world_size = world
    seen = tree(0, story.now)
    story.tell(replace(seen, main=replace(seen.main, ppid=parent)))
    records: list[Record] = []
    node = NodeContext(Reporter(records.append, "node-0"), story.engine, None, None)  # type: ignore[arg-type]
    node.pid = root
    sampler = StarterSampler.of(node)

    def dump(pid: int, deadline: float, *, parent_pid: int) -> dict[str, Any]:
        return {"pid": pid, "parent_pid": parent_pid, "codes": [], "threads": []}

    sampler._stacks.dump = dump  # type: ignore[method-assign, assignment]
    for _ in range(3):
        sampler.tend(closer, story.engine.job)
        sampler.sample()
    return records


def test_stack_of_the_parent_of_the_rank_that_is_there_is_read_now_and_then() -> None:
    [record] = asked()

    assert (record.source, record.rank) == ("remote_stack", 0)
    assert (record.payload["pid"], record.payload["parent_pid"]) == (STARTER, pid_of(0))


@pytest.mark.parametrize("changed", [{"closer": False}, {"world": 1}, {"root": pid_of(0)}, {"parent": 1}])
def test_launcher_of_a_job_that_is_whole_or_not_suspected_and_diag_itself_are_not_read(
    changed: dict[str, Any],
) -> None:
    assert asked(**changed) == []
