"""What a job that is restarted for weeks leaves in the state: the first failure and the latest, not each."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.rank_died import RankDiedDetector
from diag.model.observations import RankExited, RankFound, WorkerFailureReported
from tests.facts import Story, found, pid_of

RANKS, RESTARTS = 4, 300


def restart(story: Story, attempt: int, culprit: int) -> None:
    """One rank fails, the launcher ends the others, and all are started anew."""
    pids = {rank: pid_of(rank) + 10 * (attempt - 1) if attempt > 1 else pid_of(rank) for rank in range(RANKS)}
    story.tell(RankExited(culprit, pids[culprit], 1, None, "pidfd"))
    story.tell(WorkerFailureReported(culprit, 1, pids[culprit], "exitcode: 1"))
    story.wait(0.5)
    story.tell(*(RankExited(rank, pids[rank], None, 15, "pidfd") for rank in pids if rank != culprit))
    story.wait(30.0)
    for rank, pid in pids.items():
        place = replace(found(rank, RANKS).placement, pid=pid + 10 if attempt > 1 else pid_of(rank) + 10)
        story.tell(RankFound(rank, place, "python train.py"))
    story.wait(30.0)


def test_restarts_of_weeks_leave_the_first_failure_and_the_latest() -> None:
    story = Story([RankDiedDetector()], world=RANKS)
    restart(story, 1, culprit=3)
    told = story.the("rank-died")
    job = story.engine.job

    for attempt in range(2, RESTARTS):
        restart(story, attempt, culprit=attempt % 3)

    assert len(job.ranks.past) <= 2 * (RANKS + 64)
    failed = [rank for rank in job.ranks.past if rank.failed and not rank.was_ended]
    assert (failed[0].rank, failed[-1].rank) == (3, (RESTARTS - 1) % 3)
    assert {rank.rank for rank in job.ranks.past[-RANKS:]} == set(range(RANKS))  # the last attempt, whole
    assert (
        (story.the("rank-died").subject, story.the("rank-died").since)
        == (told.subject, told.since)
        == ("rank 3", told.since)
    )
    assert len([one for one in story.findings() if one.id == "rank-died"]) == 1
