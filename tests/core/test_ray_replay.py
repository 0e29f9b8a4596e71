"""Journals of jobs on Ray, judged again: who waits for whom, what is not placed, who ended an actor; and healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import Finding

CAPTURES = Path(__file__).parents[1] / "captures" / "ray"


def findings(name: str) -> list[Finding]:
    engine, _ = replay_records(JournalReader(segments(CAPTURES / name)))
    return list(engine.all_findings())


def test_actor_whose_call_has_returned_is_named_by_its_peer_in_a_collective() -> None:
    (held,) = findings("actor-left")

    assert (held.id, held.klass, held.cause) == ("held-up", "peer_not_joined", "ray_actor_left")
    assert (held.ranks, held.waiting_ranks) == ((1,), (0,))
    assert "the actor Trainer (pid 6264) runs no method: its last call has returned" in held.summary
    assert "rank 0 waits in all_reduce (from Trainer.fit, ddp.py:37)" in held.summary


@pytest.mark.parametrize(
    ("name", "whom"),
    [
        (
            "actor-not-placed",
            "(from main, placement.py:30) for 1 min 36 s: for an actor or task that needs {judge: 1} (the cluster has no judge): "
            "Ray has not placed it",
        ),
        (
            "group-not-placed",
            "for a placement group of 3 bundles of {CPU: 2} (PACK) (CPU: 6 in all, and the cluster has 4): Ray has not placed it",
        ),
    ],
)
def test_what_ray_has_no_room_for_is_said_with_what_the_cluster_lacks(name: str, whom: str) -> None:
    (held,) = findings(name)

    assert (held.id, held.cause, held.ranks) == ("held-up", "ray_has_no_room", ())
    assert held.summary.startswith("the driver (pid ") and whom in held.summary


def test_chain_goes_from_the_driver_over_the_rollout_to_the_reward_service_and_to_its_line() -> None:
    (held,) = findings("reward-service")

    assert (held.id, held.klass, held.cause, held.ranks) == (
        "held-up",
        "resource_wait",
        "ray_service_silent",
        (),
    )
    assert held.summary.startswith("the driver (pid ")
    assert "has waited in ray.get (from main, ppo.py:" in held.summary
    assert "for Rollout.generate (pid " in held.summary
    assert "which waits for data from 127.0.0.1:" in held.summary
    assert held.summary.endswith(", in Reward.judge_by_hand (ppo.py:33)")
    assert any("ranks 0-1: actors between two calls" in one.excerpt for one in held.evidence)


def test_actor_that_was_killed_by_ray_is_no_culprit_of_its_own() -> None:
    died = next(one for one in findings("killed") if one.id == "rank-died")

    assert (died.cause, died.ranks) == ("ray_killed", (1,))
    assert "was ended by Ray: ray.kill was called on its actor, or no handle to it was left" in died.summary
    assert any("Received KillLocalActor RPC" in one.excerpt for one in died.evidence if one.kind == "ray")


@pytest.mark.parametrize("name", ["ddp-healthy", "placement-healthy", "slow-rollout", "train-healthy"])
def test_healthy_jobs_give_nothing_also_where_a_rollout_computes_for_100_seconds(name: str) -> None:
    assert findings(name) == []
