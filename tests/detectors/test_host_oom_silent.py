"""What is not said of memory: kills of neighbours, refusals that were survived, phases and iterations of another
moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from diag.model import Finding, Placement
from diag.model.observations import (
    CgroupPids,
    Iteration,
    KernelRefusal,
    LimitsSeen,
    RankFound,
    SaveFinished,
    SourceFailed,
)
from tests.detectors.memfacts import (
    GIB,
    HOST,
    MEMORY_FINDINGS,
    OWN,
    cgroup_by_counter,
    dies,
    full,
    group,
    kernel,
    save,
    says,
    told,
)
from tests.facts import TICKS, Story, pid_of


def memory_findings(story: Story) -> list[Finding]:
    return [finding for finding in story.findings() if finding.id in MEMORY_FINDINGS]


# -- silent
# -------------------------------------------------------------------------------------------------------


def neighbours_kill_and_a_sigkill_by_hand(story: Story) -> None:
    story.tell(kernel(4242, "/other", "/other", GIB), replace(HOST, oom_kills=6))
    dies(story, signal=9)


def neighbours_kill_told_by_the_host_alone(story: Story) -> None:
    story.tell(replace(HOST, oom_kills=6))
    dies(story, signal=9)


def process_of_the_same_name_elsewhere(story: Story) -> None:
    story.tell(kernel(4242, "/other", "/other", GIB))
    dies(story, signal=9)


def sigkill_by_hand_in_a_full_cgroup(story: Story) -> None:
    story.tell(
        group(
            own=replace(OWN, usage_bytes=OWN.limit_bytes or 0, peak_bytes=OWN.limit_bytes),
            cache_bytes=2 * GIB,
        )
    )
    dies(story, signal=9)


def survived_refusal_and_another_death(story: Story) -> None:
    says(story, "MemoryError")
    story.wait(300.0)
    says(story, "ValueError: loss is nan")
    dies(story, code=1)


def survived_refusal_just_before(story: Story) -> None:
    says(story, "MemoryError")
    story.wait(20.0)
    says(story, "ValueError: loss is nan")
    dies(story, code=1)


def page_cache_at_the_limit(story: Story) -> None:
    for number in range(10):
        own = replace(OWN, usage_bytes=4 * GIB, max_events=50 * number)
        story.tell(group(own=own, cache_bytes=3 * GIB, max_events=50 * number, pressure_full_ratio=0.02))
        story.wait(5.0)


def error_11_of_a_socket(story: Story) -> None:
    story.tell(CgroupPids(1, "/pids", 40, 64, 0))
    says(story, "BlockingIOError: [Errno 11] Resource temporarily unavailable")
    dies(story, code=1)


def neighbours_fork_refused(story: Story) -> None:
    story.tell(
        CgroupPids(1, "/pids", 40, 64, 0),
        KernelRefusal(None, "pids", None, "", "fork rejected", cgroup="/other"),
    )
    story.wait(5.0)


@pytest.mark.parametrize(
    "happens",
    [
        neighbours_kill_and_a_sigkill_by_hand,
        neighbours_kill_told_by_the_host_alone,
        process_of_the_same_name_elsewhere,
        sigkill_by_hand_in_a_full_cgroup,
        survived_refusal_and_another_death,
        survived_refusal_just_before,
        page_cache_at_the_limit,
        error_11_of_a_socket,
        neighbours_fork_refused,
    ],
    ids=lambda value: value.__name__,
)
def test_nothing_is_said_of_memory(happens: Callable[[Story], None]) -> None:
    story = told()

    happens(story)

    assert memory_findings(story) == []


def test_unexplained_kill_is_not_checked_where_the_kernels_log_is_closed() -> None:
    story = told()
    story.tell(
        SourceFailed(
            None, "kernel log", "/dev/kmsg: Operation not permitted", "docker run --device /dev/kmsg"
        )
    )

    neighbours_kill_told_by_the_host_alone(story)

    assert any(line.what == "whether the OOM killer did it" for line in story.engine.not_checked())


def test_process_of_the_cgroup_that_is_not_the_jobs_is_a_warning_that_names_it() -> None:
    story = told()

    story.tell(
        kernel(4242, "/pod/main", "/pod/main", 4 * GIB, comm="tensorboard"), group(kills=1, own=full(OWN))
    )
    story.wait(5.0)

    found = story.the("host-oom")
    assert (found.severity.value, found.ranks) == ("warning", ())
    assert "process tensorboard (host pid 4242), which held 3 GiB, in the job's cgroup" in found.summary


def test_limit_of_processes_about_to_be_met_is_a_warning_and_room_is_none() -> None:
    story = told()
    story.tell(CgroupPids(0, "/pids", 500, 1024, 0), CgroupPids(1, "/pids", 1020, 1024, 0))
    story.wait(2.0)

    assert (story.the("pids-limit").cause, story.the("pids-limit").ranks) == ("nearly_full", (1,))


@pytest.mark.parametrize("refused, cause", [(1, "cgroup_pids"), (0, "rlimit_nproc")])
def test_users_limit_is_not_named_before_the_cgroup_was_read_again(refused: int, cause: str) -> None:
    """The line comes at once, the cgroup's counter with the next reading."""
    story = told()
    story.tell(LimitsSeen(1, pid_of(1), (("Max processes", 4096),)), CgroupPids(1, "/pids", 40, 64, 0))
    story.wait(1.0)
    says(story, "BlockingIOError: [Errno 11] Resource temporarily unavailable")
    story.wait(2.0)
    early = memory_findings(story)

    story.tell(CgroupPids(1, "/pids", 41, 64, refused))
    story.wait(2.0)

    assert early == []
    assert story.the("pids-limit").cause == cause


def test_save_that_ended_is_not_the_phase_of_a_kill_after_it() -> None:
    story = told()
    save(story)
    story.wait(5.0)
    story.tell(SaveFinished(0, "saved", "/out/ckpt"), Iteration(0, 510, 1000, "510"))
    story.wait(5.0)

    cgroup_by_counter(story)

    assert "for memory after iteration 510" in story.the("host-oom").summary


def test_kill_before_an_elastic_restart_is_told_with_the_iteration_of_then_and_names_no_new_process() -> None:
    story = told()
    story.tell(Iteration(None, 19, 1000, "19/1000"))
    story.wait(2)
    story.tell(group(kills=1, own=full(OWN)))
    dies(story, signal=9)
    story.exit(0, signal=15)
    for rank in (0, 1):
        place = Placement(rank, rank, 2, "node-0", 5000 + rank, TICKS, 0, 2, "torchrun")
        story.tell(RankFound(rank, place, "python train.py"))
    story.wait(2)
    story.tell(Iteration(None, 59, 1000, "59/1000"))
    story.wait(2)

    assert story.the("host-oom").summary.startswith("the kernel killed rank 1 for memory after iteration 19")
    died = story.the("rank-died")
    assert "after iteration 19" in died.summary and (died.ranks, died.waiting_ranks) == ((1,), ())
