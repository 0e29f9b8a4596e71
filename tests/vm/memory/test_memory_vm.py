"""What `diag run` finds in jobs whose memory runs out, on a real kernel with cgroup v2 (see machine.py and
scenarios.py)."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from diag.model import Record
from diag.model.observations import KernelOomKill, SourceFailed
from diag.sources.parsers import PARSERS
from tests.vm.machine import Answers
from tests.vm.memory.scenarios import MIB, SCENARIOS, Scenario

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2700)]


def counted(run: dict[str, Any], cgroup: str, file: str) -> dict[str, int]:
    """Of a file of the cgroup: NAME NUMBER a line."""
    return {
        name: int(value)
        for name, value in (line.split() for line in run["cgroups"][cgroup or "."][file].splitlines())
    }


def opened(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [change["finding"] for change in run["changes"] if change["change"] != "resolved"]


# -- jobs under `diag run`
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_diag_run_finds_what_is_wrong_and_nothing_else(answers: Answers, scenario: Scenario) -> None:
    run = answers[f"memory:{scenario.name}"]
    found = [finding for finding in opened(run) if finding["severity"] != "info"]
    told = f"{run['problem']}\nfound: {found}\nterminal ends:\n{run['terminal']}"

    for wanted in scenario.wanted:
        assert any(wanted.is_met_by(finding) for finding in found), f"{wanted} was not found; {told}"
        causes = [finding["cause"] for finding in found if finding["id"] == wanted.id]
        # A slow machine is read between the last process that fits and the one that is refused: that warning
        # is right.
        assert wanted.cause is None or (
            set(causes) - set(scenario.warned) == {wanted.cause} == {causes[-1]}
        ), told
    ids = {wanted.id for wanted in scenario.wanted} | set(scenario.also)
    assert {finding["id"] for finding in found} <= ids, told
    assert not run["problem"], told


@pytest.mark.parametrize(
    "scenario",
    [scenario for scenario in SCENARIOS if scenario.peak is not None],
    ids=lambda scenario: scenario.name,
)
def test_peak_is_that_of_the_kernel(answers: Answers, scenario: Scenario) -> None:
    run = answers[f"memory:{scenario.name}"]
    summary = [finding["summary"] for finding in opened(run) if finding["id"] == "host-oom"][-1]

    peak = re.search(r"peak ([\d.]+) (MiB|GiB)", summary)

    assert peak is not None, summary
    size = float(peak[1]) * (MIB if peak[2] == "MiB" else 1 << 30)
    assert size == pytest.approx(int(run["cgroups"][scenario.peak or "."]["memory.peak"]), rel=0.05)


# -- that the kernel did it: a finding, or silence, is worth nothing without
# ----------------------------------


@pytest.mark.parametrize(
    ("name", "cgroup"),
    [
        ("rank_limit", "rank1"),
        ("pod_limit", ""),
        ("container_limit", "main"),
        ("group_kill", "main"),
        ("writer_killed", "rank1"),
    ],
)
def test_kernel_killed_for_the_limit_of_this_cgroup(answers: Answers, name: str, cgroup: str) -> None:
    run = answers[f"memory:{name}"]

    assert counted(run, cgroup, "memory.events")["oom_kill"] >= 1
    assert any(f"oom_memcg=/{name}{'/' + cgroup if cgroup else ''}," in line for line in run["kernel"])


def test_kernel_killed_the_whole_group(answers: Answers) -> None:
    assert counted(answers["memory:group_kill"], "main", "memory.events")["oom_group_kill"] == 1


def test_diag_that_dies_with_the_container_leaves_its_record(answers: Answers) -> None:
    run = answers["memory:group_kill_with_diag"]

    assert run["exit"] == -signal.SIGKILL
    assert run["run"]


def test_kernel_takes_diags_sidecars_before_a_rank_that_holds_less_than_half_of_the_host(
    answers: Answers,
) -> None:
    """They say so themselves (oom_score_adj): the job comes first."""
    run = answers["memory:host_runs_out"]

    killed = [line for line in run["kernel"] if "Killed process" in line]

    assert ["oom_score_adj:500" in line for line in killed[:3]] == [True, True, False]


def test_kernel_refused_forks(answers: Answers) -> None:
    pids, strict = answers["memory:pids_limit"], answers["memory:fork_refused"]

    assert counted(pids, "rank1", "pids.events")["max"] >= 1
    assert any("fork rejected by pids controller in /pids_limit/rank1" in line for line in pids["kernel"])
    assert "BlockingIOError: [Errno 11]" in pids["terminal"]
    assert any("enough memory for the allocation" in line for line in strict["kernel"])
    assert "OSError: [Errno 12] Cannot allocate memory" in strict["terminal"]


def test_kernel_held_the_rank_up(answers: Answers) -> None:
    run = answers["memory:held_up"]

    looks = {(look["stat"].rpartition(")")[2].split()[0], look["wchan"]) for look in run["during"]}
    assert ("D", "mem_cgroup_handle_over_high") in looks
    assert counted(run, "rank1", "memory.events")["high"] > 0
    assert counted(run, "rank1", "memory.events")["oom_kill"] == 0


def test_host_ran_out(answers: Answers) -> None:
    run = answers["memory:host_runs_out"]

    assert any("global_oom" in line for line in run["kernel"])
    assert counted(run, "rank1", "memory.events")["oom"] == 0


def test_cache_met_the_limit_and_nothing_was_killed(answers: Answers) -> None:
    run = answers["memory:cache_at_the_limit"]

    assert counted(run, "rank1", "memory.events")["max"] > 0
    assert counted(run, "rank1", "memory.events")["oom_kill"] == 0
    assert int(run["cgroups"]["rank1"]["memory.peak"]) >= 60 * MIB


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario.host == "neighbour"],
                         ids=lambda scenario: scenario.name)  # fmt: skip
def test_neighbour_was_killed_for_its_memory(answers: Answers, scenario: Scenario) -> None:
    run = answers[f"memory:{scenario.name}"]

    assert any("oom_memcg=/neighbour" in line for line in run["kernel"])


# -- the kernel's log
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["root", "user_unrestricted"])
def test_kernel_log_tells_a_kill(answers: Answers, who: str) -> None:
    told = [
        fact for record in answers["kernel_log"][who] for fact in PARSERS["kmsg"](Record.from_json(record))
    ]

    kills = [fact for fact in told if isinstance(fact, KernelOomKill)]

    assert [(kill.cgroup, kill.limit_bytes, kill.comm) for kill in kills] == [
        ("/neighbour", 24 * MIB, "python3")
    ]
    assert kills[0].usage_bytes == pytest.approx(24 * MIB, rel=0.05)


def test_kernel_log_that_a_user_may_not_read_is_not_checked(answers: Answers) -> None:
    (record,) = answers["kernel_log"]["user"]

    (failed,) = PARSERS[record["source"]](Record.from_json(record))

    assert isinstance(failed, SourceFailed)
    assert (failed.source, failed.reason) == ("kernel log", "/dev/kmsg: Operation not permitted")
    assert "CAP_SYSLOG" in failed.remedy
