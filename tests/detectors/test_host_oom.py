"""host-oom and pids-limit: each cause by itself, never for another; who was killed, who grew, in which phase;
silent else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from diag.model import Finding
from diag.model.observations import (
    Iteration,
    RunEnded,
    RunStarted,
)
from tests.detectors.memfacts import (
    CASES,
    GIB,
    HOST,
    MEMORY_FINDINGS,
    MIB,
    OWN,
    cgroup_by_kernel,
    dies,
    full,
    group,
    kernel,
    save,
    says,
    stalled,
    told,
)
from tests.facts import TRAIN, Story, pid_of, process, stack, tree


def memory_findings(story: Story) -> list[Finding]:
    return [finding for finding in story.findings() if finding.id in MEMORY_FINDINGS]


@pytest.mark.parametrize(
    ("happens", "expected", "cause"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_no_cause_is_taken_for_another(happens: Callable[[Story], None], expected: str, cause: str) -> None:
    story = told()

    happens(story)

    (found,) = memory_findings(story)
    assert (found.id, found.ranks) == (expected, (1,))
    assert found.cause == cause or not cause
    assert found.advice
    assert "hang" not in [finding.id for finding in story.findings()]


# -- what is said
# -------------------------------------------------------------------------------------------------


def test_kill_in_a_save_names_rank_phase_peak_limit_and_flags_of_the_command() -> None:
    story = told()
    story.tell(
        RunStarted(
            None,
            ("megatron", "sft", "--optimizer_cpu_offload", "true", "--async_save=true"),
            999,
            "node-0",
            2,
        )
    )
    save(story)
    story.tell(tree(1, story.now, rss=GIB))
    story.wait(8.0)
    story.tell(tree(1, story.now, rss=3 * GIB))
    story.wait(1.0)

    breakdown = (("anon", 3 * GIB), ("cache", GIB))
    story.tell(kernel(pid_of(1), "/pod/main", "/pod/main", 4 * GIB, breakdown=breakdown), group(kills=1))
    story.exit(1, signal=9)
    story.tell(RunEnded(None, 1))
    story.wait(5.0)

    found = story.the("host-oom")
    assert (
        "rank 1 (pid 1001), which held 3 GiB, for memory while saving a checkpoint after iteration 500"
        in found.summary
    )
    assert (
        "cgroup /sys/fs/cgroup/pod/main (limit 4 GiB, peak 4 GiB); it grew most, by 2 GiB in 11 s"
        in found.summary
    )
    assert "--async_save keeps" in found.advice and "--optimizer_offload_fraction" in found.advice
    assert any("processes' own memory 3 GiB; page cache 1 GiB" in item.excerpt for item in found.evidence)


def test_grower_is_named_apart_from_the_victim() -> None:
    story = told()
    worker = process(3000, comm="pt_data_worker", rss=200 * MIB)
    story.tell(tree(0, story.now, worker))
    story.wait(5.0)
    story.tell(
        tree(0, story.now, replace(worker, rss_bytes=3 * GIB)), group(own=replace(OWN, usage_bytes=4 * GIB))
    )
    story.wait(1.0)

    # as big as it was
    story.tell(replace(kernel(pid_of(1), "/pod/main", "/pod/main", 4 * GIB), anon_bytes=GIB))
    dies(story, signal=9)

    found = story.the("host-oom")
    assert (found.ranks, found.waiting_ranks) == ((0,), (1,)) and "killed rank 1 (pid 1001)" in found.summary
    assert "DataLoader worker 3000 of rank 0 grew most, by 2.8 GiB in 5 s" in found.summary
    assert found.advice.endswith("each of which prefetches --dataloader_prefetch_factor batches.")


def test_rank_that_was_killed_is_to_blame_where_all_grew_alike() -> None:
    story = told()
    story.wait(5.0)
    story.tell(tree(0, story.now, rss=2 * GIB), tree(1, story.now, rss=5 * GIB // 2))
    story.wait(1.0)

    story.tell(kernel(pid_of(1), "/pod/main", "/pod/main", 4 * GIB))
    dies(story, signal=9)

    assert (story.the("host-oom").ranks, story.the("host-oom").waiting_ranks) == ((1,), ())


def test_killed_worker_is_named_with_its_rank_though_no_rank_was_killed() -> None:
    story = told()
    worker = process(3000, comm="pt_data_worker", rss=200 * MIB)
    story.tell(tree(0, story.now, worker), tree(1, story.now, process(3001, comm="pt_data_worker")))
    story.wait(2.0)

    story.tell(kernel(3000, "/pod/main", "/pod/main", 4 * GIB, comm="pt_data_worker"), group(kills=1))
    story.exit(0, code=1)
    story.wait(3.0)

    found = story.the("host-oom")
    assert (found.ranks, found.cause) == ((0,), "cgroup_limit")
    assert "killed DataLoader worker 3000 of rank 0, which held 3 GiB, for memory" in found.summary


def test_killed_worker_is_named_without_the_kernels_word_when_it_is_gone_as_the_counter_rises() -> None:
    story = told()
    worker = process(3000, comm="pt_data_worker", rss=3 * GIB)
    story.tell(tree(0, story.now, worker), tree(1, story.now))
    story.wait(2.0)

    story.tell(group(rank=0, kills=1, own=full(OWN)))
    story.tell(tree(0, story.now + 0.5))
    story.exit(0, code=1)
    story.wait(3.0)

    found = story.the("host-oom")
    assert found.ranks == (0,) and "DataLoader worker 3000 of rank 0, which held 3 GiB," in found.summary


def test_rank_in_another_pid_namespace_is_found_by_name_and_size() -> None:
    # given diag inside a container: the kernel tells the host's number, which nobody here has
    story = told()
    workers = [process(3000 + number, comm="pt_data_worker", rss=(number + 1) * GIB) for number in range(3)]
    story.tell(tree(0, story.now, *workers))
    story.wait(2.0)
    story.tell(
        group(kills=1, own=full(OWN)),
        kernel(777_000, "/docker/4d27", "/docker/4d27", 4 * GIB, comm="pt_data_worker"),
    )
    story.tell(tree(0, story.now + 0.5, workers[0], workers[1]))
    story.tell(kernel(777_000, "/docker/4d27", "/docker/4d27", 4 * GIB, comm="pt_data_worker"))
    story.exit(0, code=1)
    story.wait(3.0)

    found = story.the("host-oom")
    assert found.ranks == (0,) and "DataLoader worker 3002 of rank 0" in found.summary


def test_kill_of_a_neighbour_at_another_limit_is_not_taken_for_the_writer_that_our_cgroup_lost() -> None:
    # given: a short-lived writer that nobody had seen is killed in rank 1's own cgroup, a neighbour elsewhere
    # just before
    story = told()
    alone = replace(OWN, path="/sys/fs/cgroup/pod/rank1")
    story.tell(group(own=alone))
    story.tell(kernel(593, "/neighbour", "/neighbour", 112 << 20))
    story.wait(1.0)

    story.tell(group(kills=1, own=full(alone)))
    dies(story, code=1)

    found = story.the("host-oom")
    assert (found.ranks, found.cause) == ((1,), "cgroup_limit") and "593" not in found.summary


def test_kill_of_a_neighbour_that_only_the_hosts_counter_told_is_not_the_moment_of_ours() -> None:
    # given: the host counts a neighbour's kill, then a save begins, and in it the kernel takes rank 1
    story = told()
    story.tell(replace(HOST, oom_kills=HOST.oom_kills + 1))
    story.wait(4.0)
    save(story)
    story.wait(3.0)

    story.tell(kernel(pid_of(1), "/pod/main", "/pod/main", 4 * GIB))
    dies(story, signal=9)

    assert "while saving a checkpoint" in story.the("host-oom").summary


def test_kills_of_neighbours_that_the_kernel_told_are_not_the_moment_of_the_one_that_our_cgroup_counts() -> (
    None
):
    story = told()
    alone = replace(OWN, path="/sys/fs/cgroup/pod/rank1")
    story.tell(group(own=alone), replace(HOST, oom_kills=HOST.oom_kills + 1))
    story.tell(kernel(593, "/neighbour", "/neighbour", 112 << 20), kernel(594, "/other", "/other", 112 << 20))
    story.wait(4.0)
    save(story)
    story.wait(1.5)

    # when: the counter comes before the kernel's own line, as it happens
    story.tell(group(kills=1, own=full(alone)), kernel(687, "/pod/rank1", "/pod/rank1", 4 * GIB))
    dies(story, code=1)

    found = story.the("host-oom")
    assert "while saving a checkpoint" in found.summary and found.ranks == (1,)


def test_writer_that_nobody_had_seen_is_of_the_one_rank_that_lives_in_the_cgroup_that_the_kernel_names() -> (
    None
):
    story = told()
    alone = replace(OWN, path="/sys/fs/cgroup/pod/rank1")
    story.tell(group(own=alone))

    story.tell(group(kills=1, own=full(alone)), kernel(687, "/pod/rank1", "/pod/rank1", 4 * GIB))
    dies(story, code=1)

    found = story.the("host-oom")
    assert (found.ranks, found.cause) == ((1,), "cgroup_limit")
    assert "process python3 (host pid 687), which held 3 GiB, in the cgroup of rank 1" in found.summary


def test_process_that_the_kernel_took_from_a_cgroup_beside_the_ranks_is_nobodys() -> None:
    # given: the kernel's own name of the cgroup is another than the rank's (a namespace): it may be anybody's
    story = told()
    alone = replace(OWN, path="/sys/fs/cgroup/pod/rank1")
    story.tell(group(own=alone))

    story.tell(group(kills=1, own=full(alone)), kernel(687, "/docker/4d27", "/docker/4d27", 4 * GIB))
    dies(story, code=1)

    assert story.the("host-oom").ranks == ()


def test_pid_of_the_launchers_table_and_of_dmesg_are_joined_where_there_are_only_logs() -> None:
    story = Story()
    story.exit(1, signal=9)

    story.tell(kernel(pid_of(1), "/pod/main", "/pod/main", 4 * GIB), kernel(4242, "/other", "/other", GIB))
    story.wait(5.0)

    found = story.the("host-oom")
    assert (found.cause, found.ranks) == ("cgroup_limit", (1,)) and "rank 1 (pid 1001)" in found.summary
    assert [item.excerpt for item in found.evidence] == ["Killed process 1001 (python3)"]


def test_other_tenants_of_the_cgroup_are_named() -> None:
    story = told()

    story.tell(
        kernel(
            pid_of(1),
            "/pod",
            "/pod/main",
            8 * GIB,
            tasks=((90, "vllm", 5 * GIB), (pid_of(1), "python3", 3 * GIB), (91, "sh", MIB)),
        )
    )
    dies(story, signal=9)

    found = story.the("host-oom")
    assert any("vllm (pid 90, not of the job) 5 GiB" in item.excerpt for item in found.evidence)
    assert "limit is a parent's" in found.advice and "pod" in found.advice


def test_kill_when_a_save_was_due_says_so_though_nothing_showed_it() -> None:
    # given ms-swift 4.x, which prints nothing when a save begins
    story = told()
    story.tell(
        RunStarted(None, ("megatron", "sft", "--save_steps", "50"), 999, "node-0", 2),
        Iteration(0, 100, 1000, "100"),
    )
    story.wait(1.0)

    story.tell(group(kills=1, own=full(OWN)))
    dies(story, signal=9)

    assert "after iteration 100, when a checkpoint was to be saved" in story.the("host-oom").summary


def test_phase_is_that_of_the_kill_not_of_the_end() -> None:
    story = told()
    story.tell(Iteration(0, 500, 1000, "iteration 500"))
    story.wait(1.0)
    story.tell(group(kills=1, own=full(OWN)))
    story.exit(1, signal=9)
    story.wait(0.5)
    story.tell(RunEnded(None, 1))
    story.wait(5.0)

    assert "for memory after iteration 500:" in story.the("host-oom").summary


def test_rank_died_refers_to_it_by_the_kernels_word_alone() -> None:
    story = told()

    cgroup_by_kernel(story)

    died = story.the("rank-died")
    assert died.cause == "oom_kill" and "host-oom" in died.advice


def test_kill_of_a_worker_long_ago_is_not_taken_for_the_death_now() -> None:
    story = told()
    story.tell(group(kills=1, own=full(OWN)))
    story.wait(600.0)

    dies(story, signal=9)

    assert story.the("rank-died").cause == "signal_9"


def test_refusal_names_size_and_promised_memory() -> None:
    story = told()
    story.tell(replace(HOST, overcommit=2))
    says(
        story,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)",
    )
    dies(story, code=1)

    found = story.the("host-oom")
    assert "could not have host memory of 16 GiB" in found.summary
    assert (
        "8 GiB of 32 GiB are promised already" in found.summary and "vm.overcommit_memory=0" in found.advice
    )


def test_stall_is_a_warning_that_names_memory_high_and_is_over_when_it_is_over() -> None:
    story = told()
    stalled(story)
    during = story.the("host-oom")
    for _ in range(12):
        story.tell(
            group(own=replace(OWN, high_bytes=4 * GIB), high_events=600, pressure_full_ratio=0.0),
            tree(1, story.now),
        )
        story.wait(5.0)

    assert during.severity.value == "warning" and "above memory.high of 2 GiB" in during.summary
    assert "35 % of the last 10 s" in during.summary and "memory.high" in during.advice
    assert memory_findings(story) == []


def test_silent_job_that_waits_for_memory_is_no_hang_of_a_collective() -> None:
    # given all ranks in a collective for minutes, in a cgroup that the kernel takes memory from
    story = told()
    at_limit = replace(OWN, usage_bytes=4 * GIB)
    for number in range(80):
        for rank in (0, 1):
            story.tell(
                group(rank, own=at_limit, pressure_full_ratio=0.5, max_events=10 * number),
                tree(rank, story.now, cpu=1.0),
            )
            story.tell(
                stack(rank, story.now, (*TRAIN, "all_reduce torch/distributed/distributed_c10d.py:3173"))
            )
        story.wait(5.0)

    hang = story.hang()
    assert (hang.klass, hang.cause, hang.ranks) == ("resource_wait", "memory_reclaim", (0, 1))
    assert story.the("host-oom").cause == "reclaim_stall"
