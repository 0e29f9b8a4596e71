"""rank-died: the first death is named, victims and ordered ends are not."""

from __future__ import annotations

import pytest

from diag.engine.replay import replay_text
from diag.model.observations import CgroupMemory, Interrupted, KernelOomKill, LogLine, RunEnded, XidReported
from diag.outputs.report import report
from tests.detectors.gpufacts import said
from tests.facts import Story, pid_of


def say(story: Story, rank: int, *lines: str) -> None:
    for line in lines:
        story.tell(LogLine(rank, "stderr", line))


def test_rank_killed_by_a_signal_is_named_and_those_ended_after_it_are_victims() -> None:
    story = Story(world=4)

    story.exit(2, signal=9)
    story.wait(0.5)
    for rank in (0, 1, 3):
        story.exit(rank, signal=15)
    story.wait(5)

    died = story.the("rank-died")
    assert (died.ranks, died.waiting_ranks, died.cause) == ((2,), (0, 1, 3), "signal_9")
    assert "SIGKILL" in died.summary


def test_rank_with_the_own_error_is_blamed_not_the_one_that_lost_its_peer_and_was_seen_first() -> None:
    # lines of two gloo ranks, torch 2.13, 2026-11-21
    story = Story()
    say(
        story,
        0,
        "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17577.",
    )
    say(story, 1, "[rank1]: RuntimeError: DataLoader worker (pid 20352) is killed by signal: Killed. ")

    story.exit(0, code=1)
    story.wait(0.2)
    story.exit(1, code=1)
    story.wait(5)

    died = story.the("rank-died")
    assert (died.ranks, died.cause) == ((1,), "dataloader_worker_killed")
    assert "DataLoader worker (pid 20352)" in died.summary


def test_death_with_a_risen_oom_counter_is_the_oom_killers_and_host_oom_is_found() -> None:
    story = Story()
    memory = CgroupMemory(1, 2, "/job", 90, 100, 100, 0)
    story.tell(memory)

    story.tell(CgroupMemory(1, 2, "/job", 90, 100, 100, 1))
    story.exit(1, signal=9)
    story.wait(5)

    assert story.the("rank-died").cause == "oom_kill"
    assert (story.the("host-oom").ranks, story.the("host-oom").cause) == ((1,), "cgroup_limit")


def test_job_that_was_told_to_end_raises_nothing() -> None:
    story = Story()

    story.tell(Interrupted(None, 2))
    story.exit(0, signal=15)
    story.exit(1, code=1)
    story.tell(RunEnded(None, 130))
    story.wait(5)

    assert story.findings() == []


def test_ranks_that_end_with_code_0_raise_nothing() -> None:
    story = Story()

    story.exit(0, code=0)
    story.exit(1, code=0)
    story.tell(RunEnded(None, 0))
    story.wait(60)

    assert story.findings() == []


def test_job_ended_by_sigterm_of_the_scheduler_names_no_rank() -> None:
    story = Story()

    story.exit(0, signal=15)
    story.exit(1, signal=15)
    story.wait(5)

    assert [finding.id for finding in story.findings() if finding.id == "rank-died"] == []


LOST = "[rank{}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17577."


def test_rank_that_left_early_is_to_blame_for_the_peers_that_lost_its_connection() -> None:
    story = Story(world=3)
    story.exit(2, code=0)
    story.wait(0.4)
    say(story, 0, LOST.format(0))
    story.exit(0, code=1)
    story.wait(0.2)
    story.exit(1, signal=15)
    story.wait(5)

    died = story.the("rank-died")
    assert (died.ranks, died.waiting_ranks, died.cause, died.confidence.value) == (
        (2,),
        (0, 1),
        "rank_left_early",
        "medium",
    )
    assert "exit code 0" in died.summary and "Connection closed by peer" in died.summary


def test_rank_that_lost_the_connection_to_another_node_is_not_said_to_have_failed_by_itself() -> None:
    """A hub that sees one rank of four: who was at the other end it cannot know."""
    lost, own = Story(world=1), Story(world=1)
    say(lost, 0, LOST.format(0))
    say(own, 0, "[rank0]: ValueError: a number of heads that does not divide")
    for story in (lost, own):
        story.exit(0, code=1)
        story.wait(5)

    assert "Rank 0 lost a connection" in lost.the("rank-died").advice
    assert "Rank 0 failed by itself" in own.the("rank-died").advice


def test_rank_with_an_error_of_its_own_is_not_excused_by_one_that_ended_well() -> None:
    story = Story(world=3)
    story.exit(2, code=0)
    story.wait(0.4)
    say(story, 0, "[rank0]: ValueError: a shape that does not fit", LOST.format(0))
    story.exit(0, code=1)
    story.wait(5)

    assert story.the("rank-died").ranks == (0,)


def test_lost_connection_long_after_a_rank_ended_well_is_not_its_fault() -> None:
    story = Story(world=3)
    story.exit(2, code=0)
    story.wait(300.0)
    say(story, 0, LOST.format(0))
    story.exit(0, code=1)
    story.wait(5)

    assert story.the("rank-died").ranks == (0,)


def test_killed_worker_is_out_of_memory_only_where_the_kernel_or_a_counter_says_so() -> None:
    """Seen on H200: a worker that was sent SIGKILL, with no OOM kill in the kernel's log or the cgroup's counter."""
    line = "[rank1]: RuntimeError: DataLoader worker (pid 5005) is killed by signal: Killed. "
    sent, killed = Story(), Story()
    killed.tell(
        KernelOomKill(None, 5005, "pt_data_worker", 1 << 30, 0, 0, "/job", None, None, "Killed process 5005")
    )
    for story in (sent, killed):
        story.tell(CgroupMemory(1, 2, "/job", 90, 100, 100, 0))
        say(story, 1, "Traceback (most recent call last):", line)
        story.exit(1, code=1)
        story.wait(5)

    assert "an operator" in sent.the("rank-died").advice
    assert "for memory, of which nothing was read here" in sent.the("rank-died").advice
    assert killed.the("rank-died").advice.startswith("The kernel killed it for memory")


@pytest.mark.parametrize("code", [{"code": 1}, {"signal": 6}])
def test_death_of_a_rank_whose_gpu_fault_was_found_follows_from_it(code: dict[str, int]) -> None:
    """2 x H200, a Triton store out of bounds: beside the fault stood "said nothing that tells why"."""
    story = Story()
    story.tell(
        XidReported(None, "0000:00:07", 31, pid_of(1), "NVRM: Xid (PCI:0000:00:07): 31, pid=1001", "kmsg")
    )
    story.tell(
        *said("[rank1]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered", 1)
    )
    story.exit(1, **code)
    story.wait(5)

    assert (story.the("gpu-fault").ranks, story.the("gpu-fault").cause) == ((1,), "illegal_address")
    assert story.the("rank-died").advice.startswith("See finding gpu-fault for why rank 1 failed")
    assert "no exception" not in story.the("rank-died").summary


@pytest.mark.parametrize(
    ("other", "follows"),
    [
        ("ValueError: a shape that is too long", False),
        ("torch.distributed.DistBackendError: [1] recvValue failed: Connection reset by peer", True),
    ],
)
def test_errors_of_others_follow_only_where_they_report_a_lost_peer(other: str, follows: bool) -> None:
    text = ""
    for rank, error in ((0, "ValueError: a shape that is too long"), (1, other)):
        for line in ("Traceback (most recent call last):", '  File "/app/train.py", line 7, in run', error):
            text += f"[rank{rank}]: {line}\n"

    findings = report(replay_text(text))["findings"]

    death = next(one for one in findings if one["id"] == "rank-died")
    assert death["ranks"] == [0]
    assert ("The other ranks' errors follow from it." in death["advice"]) is follows


def test_ranks_that_failed_as_the_first_did_are_not_said_to_wait() -> None:
    crashed, aborted = Story(world=4), Story(world=4)
    for story, signal in ((crashed, 11), (aborted, 6)):
        for rank in (2, 0, 3):
            story.exit(rank, signal=signal)
        story.wait(5)

    alike, watched = crashed.the("rank-died"), aborted.the("rank-died")

    first = alike.ranks[0]
    others = tuple(rank for rank in (0, 2, 3) if rank != first)
    assert alike.waiting_ranks == (1,)
    assert f", and likewise ranks {others[0]}, {others[1]};" in alike.summary.replace("2-3", "2, 3")
    # a watchdog aborts those that wait
    assert len(watched.waiting_ranks) == 3 and "likewise" not in watched.summary
