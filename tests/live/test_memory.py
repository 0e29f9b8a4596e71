"""Real processes in real cgroups: each want of memory is found with its cause, and memory that is only used
raises nothing."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.detectors.memory.causes import NEAR_SECONDS
from tests.cgroups import made_cgroup, memory_cgroup
from tests.liverun import LiveRun, live_run

pytestmark = pytest.mark.live
RANKS = [sys.executable, str(Path(__file__).parent / "memory_ranks.py")]
MIB = 1 << 20
LIMIT = 50 * MIB
MEMORY_FINDINGS = (
    "host-oom",
    "host-oom-forecast",
    "pids-limit",
    "memlock-limit",
    "shm-too-small",
    "fd-limit",
)
QUICK = {"DIAG_NODE_SECONDS": "0.5", "DIAG_PROC_SECONDS": "0.5"}


@contextlib.contextmanager
def watched(tmp_path: Path, *modes: str, **variables: str) -> Iterator[LiveRun]:
    """Ranks at work, of which diag has read processes and cgroups; they go on to their modes when the file
    `go` is there."""
    env = {**QUICK, "SCRATCH": str(tmp_path / "scratch"), "GO": str(tmp_path / "go"), **variables}
    with live_run(tmp_path, [*RANKS, *modes], env=env) as run:
        url = run.until(lambda: run.run_json().get("url"), 60)
        wanted = [f'diag_process_resident_memory_bytes{{rank="{rank}"}}' for rank in range(len(modes))]
        run.until(lambda: all(word in metrics(url) for word in [*wanted, "diag_host_memory_total_bytes"]), 60)
        yield run


@contextlib.contextmanager
def ranks(tmp_path: Path, *modes: str, **variables: str) -> Iterator[LiveRun]:
    """The same, run to its end."""
    with watched(tmp_path, *modes, **variables) as run:
        (tmp_path / "go").touch()
        run.wait(90)
        yield run


def metrics(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"{url}/metrics", timeout=15
    ) as answer:
        return str(answer.read().decode())


def findings(run: LiveRun) -> dict[str, dict[str, Any]]:
    """The last state of each memory finding of warning or above that opened."""
    said = [change["finding"] for change in run.changes() if change["finding"]["severity"] != "info"]
    return {finding["id"]: finding for finding in said if finding["id"] in MEMORY_FINDINGS}


def peak_told_by(cgroup: Path) -> int:
    names = ("memory.max_usage_in_bytes", "memory.peak")
    return int(next(path.read_text() for name in names if (path := cgroup / name).exists()))


def sizes(text: str) -> tuple[float, float]:
    match = re.search(r"limit ([\d.]+) MiB, peak ([\d.]+) MiB", text)
    assert match is not None, text
    return float(match[1]), float(match[2])


def struck_pid(run: LiveRun) -> str:
    match = re.search(r"\[diag\.fault\] rank \d+: .*\(pid (\d+)\)", run.text)
    assert match is not None, run.text
    return match[1]


def test_rank_killed_in_its_save_is_found_with_phase_cause_and_the_kernels_own_peak(tmp_path: Path) -> None:
    with (
        memory_cgroup(LIMIT) as cgroup,
        ranks(tmp_path, "saves", "saves-and-eats", MEMORY_CGROUP=str(cgroup)) as run,
    ):
        (found,) = findings(run).values()
        peak = peak_told_by(cgroup) / MIB

        assert (found["id"], found["cause"], found["ranks"]) == ("host-oom", "cgroup_limit", [1])
        assert (
            f"killed rank 1 (pid {struck_pid(run)})" in found["summary"]
            and "while saving a checkpoint" in found["summary"]
        )
        assert str(cgroup) in found["summary"] and "it grew most" in found["summary"]
        limit, said = sizes(found["summary"])
        assert limit == 50 and said == pytest.approx(peak, rel=0.05)
        died = next(c["finding"] for c in run.changes() if c["finding"]["id"] == "rank-died")
        assert (died["cause"], died["ranks"]) == ("oom_kill", [1])


def test_killed_worker_is_found_and_named_with_its_rank(tmp_path: Path) -> None:
    with (
        memory_cgroup(LIMIT) as cgroup,
        ranks(tmp_path, "worker-eats", "work", MEMORY_CGROUP=str(cgroup)) as run,
    ):
        (found,) = findings(run).values()

        assert (found["id"], found["cause"], found["ranks"]) == ("host-oom", "cgroup_limit", [0])
        assert re.search(
            r"killed DataLoader worker \d+ of rank 0, which held [\d.]+ MiB,", found["summary"]
        ), found["summary"]
        assert "--dataloader_num_workers" in found["advice"]
        assert sizes(found["summary"])[1] == pytest.approx(peak_told_by(cgroup) / MIB, rel=0.05)


def test_limit_of_a_parent_is_told_from_the_ranks_own(tmp_path: Path) -> None:
    # given a pod whose limit is lower than its container's
    with memory_cgroup(LIMIT) as pod, memory_cgroup(8 * LIMIT, parent=pod) as cgroup:
        with ranks(tmp_path, "saves", "saves-and-eats", MEMORY_CGROUP=str(cgroup)) as run:
            (found,) = findings(run).values()

        assert (found["id"], found["cause"], found["ranks"]) == ("host-oom", "parent_cgroup_limit", [1])
        assert f"cgroup {pod} (of a parent, limit 50 MiB" in found["summary"]
        assert sizes(found["summary"])[1] == pytest.approx(peak_told_by(pod) / MIB, rel=0.05)


def test_limit_of_addresses_is_told_from_want_of_memory(tmp_path: Path) -> None:
    with ranks(tmp_path, "saves", "saves-with-limited-addresses") as run:
        (found,) = findings(run).values()

        assert (found["id"], found["cause"], found["ranks"]) == ("host-oom", "rlimit_as", [1])
        assert "RLIMIT_AS is 512 MiB" in found["summary"] or "RLIMIT_AS is 0.5 GiB" in found["summary"]
        assert "while saving a checkpoint" in found["summary"] and "ulimit -v" in found["advice"]


def test_allocation_that_the_kernel_refused_is_told_as_such(tmp_path: Path) -> None:
    with ranks(tmp_path, "work", "maps-more-than-there-is") as run:
        (found,) = findings(run).values()

        assert (found["id"], found["cause"], found["ranks"]) == ("host-oom", "allocation_refused", [1])


def test_limit_of_processes_is_its_own_finding(tmp_path: Path) -> None:
    with made_cgroup("pids") as cgroup:
        (cgroup / "pids.max").write_text("12")
        with ranks(tmp_path, "work", "forks", PIDS_CGROUP=str(cgroup)) as run:
            (found,) = findings(run).values()

        assert (found["id"], found["cause"], found["ranks"]) == ("pids-limit", "cgroup_pids", [1])
        assert str(cgroup) in found["summary"] and "of 12 processes and threads" in found["summary"]


BENIGN = (
    "writes-page-cache",
    "writes-dirty",
    "grows-and-frees",
    "maps-a-big-file",
    "shares-memory",
    "workers-come-and-go",
    "survives-a-refusal",
    "forks-and-shares",
    "grows-by-huge-pages",
)


@pytest.mark.parametrize("mode", BENIGN)
def test_memory_that_is_only_used_raises_nothing(mode: str, tmp_path: Path) -> None:
    with memory_cgroup(LIMIT) as cgroup, ranks(tmp_path, "work", mode, MEMORY_CGROUP=str(cgroup)) as run:
        assert run.process.returncode == 0, run.text[-3000:]
        assert findings(run) == {}
        if mode == "writes-page-cache":  # it was at the limit, and that is none
            assert peak_told_by(cgroup) > 0.95 * LIMIT


def test_rank_killed_by_hand_while_a_neighbour_is_killed_for_memory_is_no_want_of_memory(
    tmp_path: Path,
) -> None:
    neighbour = "b'x' * (200 << 20)"
    with memory_cgroup(LIMIT) as cgroup, memory_cgroup(32 * MIB) as other:
        eater = subprocess.Popen([sys.executable, "-c", f"input(); {neighbour}"], stdin=subprocess.PIPE)
        (other / "cgroup.procs").write_text(str(eater.pid))
        with watched(tmp_path, "work", "is-killed-by-hand", MEMORY_CGROUP=str(cgroup)) as run:
            eater.communicate(b"\n")
            (tmp_path / "go").touch()
            run.wait(60)

            died = next(c["finding"] for c in run.changes() if c["finding"]["id"] == "rank-died")
            # both within the time in which they would be joined
            assert eater.returncode == -9 and NEAR_SECONDS > 5.0
            assert died["cause"] == "signal_9"
            assert findings(run) == {}
