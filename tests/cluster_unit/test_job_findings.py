"""What the job hub makes of its nodes' own findings: the first death of all, equal findings as one, the ranks
of each."""

from __future__ import annotations

from diag.model import Evidence, NotChecked, Severity
from diag.model.observations import RankExited
from tests.cluster_unit.facts import START, Reports, death, finding, rank

LOST = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:33451"
OWN = "ValueError: batch 7 has no labels"


# --- the first death
# ---------------------------------------------------------------------------------------------


def test_rank_that_failed_by_itself_is_named_though_its_victim_was_heard_of_first() -> None:
    reports = Reports()
    reports.hear(0, deaths=(death(0, START, LOST),))
    reports.wait(1.0)
    reports.hear(1, deaths=(death(1, START + 0.4, OWN),))
    reports.wait(2.0)

    found = reports.the("rank-died")

    assert (found.ranks, found.waiting_ranks, found.cause) == ((1,), (0,), "exit_1")
    assert found.summary.startswith("rank 1 on gpu-1 (pid 1001) ended")


def test_of_two_that_fail_of_themselves_the_first_is_named() -> None:
    reports = Reports()
    reports.hear(0, deaths=(death(0, START + 20.0, OWN),))
    reports.hear(1, deaths=(death(1, START, OWN),))
    reports.wait(2.0)

    assert reports.the("rank-died").ranks == (1,)


def test_first_death_waits_for_the_word_of_the_other_nodes_and_not_longer_than_needed() -> None:
    reports = Reports()
    reports.hear(1)
    reports.hear(0, deaths=(death(0, START, OWN),))
    reports.wait(4.0)
    early = reports.ids()
    reports.wait(2.0)
    late = reports.ids()

    ended = Reports()
    ended.hear(0, deaths=(death(0, START, OWN),), returncode=1)
    ended.hear(1, returncode=1)
    ended.wait(1.0)

    assert (early, late) == ([], ["rank-died"])
    assert ended.ids() == ["rank-died"]


def test_victim_that_was_named_gives_way_to_the_rank_that_is_heard_of_late() -> None:
    """Both are final, and a job that failed gets over nothing: the first must go all the same."""
    reports = Reports()
    reports.hear(1)
    reports.hear(0, deaths=(death(0, START, OWN),))
    reports.wait(6.0)
    assert reports.the("rank-died").ranks == (0,)

    reports.hear(1, deaths=(death(1, START - 3.0, OWN),))
    reports.wait(1.0)

    assert [(one.id, one.ranks) for one in reports.findings()] == [("rank-died", (1,))]


def test_victims_alone_wait_longer_for_the_one_that_they_lost() -> None:
    reports = Reports()
    reports.hear(1)
    reports.hear(0, deaths=(death(0, START, LOST),))
    reports.wait(14.0)
    early = reports.ids()
    reports.wait(2.0)

    assert (early, reports.ids()) == ([], ["rank-died"])


def test_ranks_that_the_launcher_ended_are_victims_and_no_death_of_their_own() -> None:
    """Their nodes name no death: every rank there ended by SIGTERM."""
    reports = Reports()
    reports.hear(0)
    reports.hear(1)
    term = RankExited(0, 1000, None, 15, "pidfd")
    reports.tell(rank(0, reports.now, exited=term))
    reports.wait(10.0)
    assert reports.ids() == []

    reports.hear(1, deaths=(death(1, reports.now, OWN),))
    reports.hear(0, returncode=1)
    reports.wait(6.0)

    assert (reports.the("rank-died").ranks, reports.the("rank-died").waiting_ranks) == ((1,), (0,))


def test_death_of_a_job_of_one_node_is_told_in_its_own_words() -> None:
    reports = Reports()
    reports.hear(0, nodes=1, deaths=(death(0, START, OWN),))
    reports.wait(6.0)

    assert reports.the("rank-died").summary == death(0, START, OWN).summary


def test_node_whose_processes_all_went_at_once_is_named_by_the_address_that_its_peers_lost() -> None:
    gone, heard = Reports(), Reports()
    for reports in (gone, heard):
        for number in (0, 1, 2):
            reports.hear(number, nodes=3)
        reports.wait(3.0)
        died = reports.now
        for _ in range(4):
            for number in (0, 1):
                reports.hear(number, nodes=3, deaths=(death(number, died, LOST),))
            if reports is heard:
                reports.hear(2, nodes=3)
            reports.wait(2.0)

    found = gone.the("rank-died")
    assert (found.cause, found.ranks, found.waiting_ranks) == ("node_silent", (2,), (0, 1))
    assert "rank 2 on gpu-2 is gone" in found.summary and "lost the connection to 10.0.0.2" in found.summary
    assert heard.ids() == []  # its word on its own rank is waited for


# --- findings of single nodes
# ------------------------------------------------------------------------------------


def test_equal_findings_of_many_nodes_are_one_with_all_ranks_and_hosts() -> None:
    reports = Reports()
    for number in range(6):
        one = finding(
            ranks=(number,),
            since=START - number,
            evidence=(Evidence("nccl", f"line {number}", START, number),),
        )
        reports.hear(number, nodes=6, findings=(one,))
    reports.wait(1.0)

    found = reports.the("ib-fallback")

    assert len(reports.findings()) == 1
    assert (found.ranks, found.since, len(found.hosts)) == (tuple(range(6)), START - 5, 6)
    assert found.summary == "ib-fallback it is (the same on all 6 nodes)"
    assert {item.rank for item in found.evidence} == set(range(6))


def test_finding_of_some_nodes_names_them() -> None:
    reports = Reports()
    for number in range(3):
        reports.hear(number, nodes=3, findings=(finding(ranks=(number,)),) if number else ())
    reports.wait(1.0)
    alone = Reports()
    alone.hear(0)
    alone.hear(1, findings=(finding(ranks=(1,)),))
    alone.wait(1.0)

    assert reports.the("ib-fallback").summary == "ib-fallback it is (the same on gpu-2 (node 2))"
    assert alone.the("ib-fallback").summary == "ib-fallback it is (gpu-1 (node 1))"


def test_graver_one_of_two_speaks_for_both() -> None:
    reports = Reports()
    reports.hear(0, findings=(finding("disk-full", summary="89 % of /data used"),))
    reports.hear(
        1,
        findings=(
            finding("disk-full", summary="/data is full", severity=Severity.CRITICAL, since=START + 3),
        ),
    )
    reports.wait(4.0)

    found = reports.the("disk-full")

    assert (found.severity, found.since) == (Severity.CRITICAL, START)
    assert found.summary.startswith("/data is full")


def test_gpu_of_one_number_on_two_nodes_is_two_gpus() -> None:
    reports = Reports()
    for number in (0, 1):
        reports.hear(number, findings=(finding("ecc-error", subject="GPU 3", ranks=(number,)),))
    reports.wait(1.0)

    assert sorted(one.subject for one in reports.findings()) == [
        "GPU 3 on gpu-0 (node 0)",
        "GPU 3 on gpu-1 (node 1)",
    ]


def test_variable_that_is_set_on_all_nodes_is_one_finding() -> None:
    reports = Reports()
    for number in range(5):
        reports.hear(
            number, nodes=5, findings=(finding("env-harmful", subject="NCCL_IB_DISABLE", ranks=(number,)),)
        )
    reports.wait(1.0)

    assert [(one.subject, one.ranks) for one in reports.findings()] == [("NCCL_IB_DISABLE", (0, 1, 2, 3, 4))]


def test_one_trouble_of_two_causes_is_two_findings_and_none_is_lost() -> None:
    reports = Reports()
    reports.hear(0, findings=(finding(cause="ib_disabled", ranks=(0,)),))
    reports.hear(1, findings=(finding(cause="no_device", ranks=(1,), since=START + 1),))
    reports.wait(2.0)

    assert sorted((one.subject, one.cause, one.ranks) for one in reports.findings()) == [
        ("gpu-1 (node 1)", "no_device", (1,)), ("job", "ib_disabled", (0,)),
    ]  # fmt: skip


def test_ranks_findings_keep_their_subject_since_ranks_are_the_jobs() -> None:
    reports = Reports()
    for number in (0, 1):
        reports.hear(number, findings=(finding("cuda-oom", subject=f"rank {number}", ranks=(number,)),))
    reports.wait(1.0)

    assert sorted(one.subject for one in reports.findings()) == ["rank 0", "rank 1"]


def test_what_a_node_says_of_the_whole_job_is_not_passed_on() -> None:
    reports = Reports()
    reports.hear(
        0,
        findings=(finding("straggler"), finding("hang"), finding("hang", rule="nccl-hang", subject="rank 0")),
    )
    reports.hear(1)
    reports.wait(1.0)

    assert [(one.id, one.rule) for one in reports.findings()] == [("hang", "nccl-hang")]


def test_finding_that_its_node_says_no_more_is_over() -> None:
    reports = Reports()
    reports.hear(0, findings=(finding(),))
    reports.wait(1.0)
    assert reports.ids() == ["ib-fallback"]

    reports.hear(0)
    reports.wait(1.0)

    assert reports.ids() == []


def test_notes_of_many_nodes_are_one_line() -> None:
    same, own = (
        NotChecked("GPUs", "no NVML", "install the driver"),
        NotChecked("kernel log", "no rights", "CAP_SYSLOG"),
    )
    reports = Reports()
    reports.hear(0, not_checked=(same, own))
    reports.hear(1, not_checked=(same,))

    assert "GPUs: no NVML" in reports.notes()
    assert "kernel log on gpu-0 (node 0): no rights" in reports.notes()
