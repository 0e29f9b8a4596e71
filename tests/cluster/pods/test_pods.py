"""`diag watch` in a container beside the trainer's: what it finds, reads and says over the border between
them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.pods.podman import Box, Pod, Podman, container, make_out, pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the image may take minutes

RANKS = str(Path(__file__).with_name("ranks.py"))
JOB = ("-m", "diag_job", "--iters", "6", "--workers", "1")


def trainer(what: str, out: Path, **more: Any) -> Box:
    """Ranks without torch; they do `what` once OUT/go is there."""
    return Box("trainer", (RANKS, what), env={"GO": str(out / "go")}, **more)


def watcher(out: Path, *options: str, user: int = 0, add: tuple[str, ...] = ("SYS_PTRACE",)) -> Box:
    return Box("diag", ("-m", "diag", "watch", "--run-root", str(out / "runs"), *options), user=user, add=add)


def sees(started: Pod, pattern: str, seconds: float = 30.0) -> re.Match[str]:
    found: re.Match[str] = started.until(lambda: re.search(pattern, started.logs("diag")), seconds)
    return found


def report(started: Pod) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(started.printed("diag"))
    return told


def not_checked(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["what"]: item for item in document["not_checked"]}


@pytest.mark.parametrize(
    ("user", "theirs"), [(0, 1000), (1000, 1000), (1001, 1000)], ids=["root", "the same user", "another user"]
)
def test_ranks_of_another_container_are_found_and_dumped_with_sys_ptrace_alone(
    podman: Podman, tmp_path: Path, user: int, theirs: int
) -> None:
    # given ranks in a container with a limit of memory, and diag in another with SYS_PTRACE as its only
    # addition
    out = tmp_path / "out"
    boxes = [trainer("wait", out, user=theirs, memory="512Mi"), watcher(out, "--json", user=user)]
    with pod(podman, "found", boxes, tmp_path) as started:
        sees(started, r"found the job: pid \d+ \(.*ranks\.py wait\), ranks? 0")

        # when a dump is asked for
        document = started.dump()

        # then it has each rank's stack, and of the trainer's container the limit and /dev/shm
        stacks = [one for one in document["dump"]["classes"] if one["kind"] == "rank"]
        assert sorted(rank for one in stacks for rank in one["ranks"]) == [0, 1]
        assert all("wait_for_the_word" in " ".join(one["frames"]) for one in stacks)
        assert not [
            what
            for what in not_checked(document)
            if what.startswith(("cgroup", "shm", "pyspy", "remote_stack"))
        ]
        records = journal(started)
        assert {512 << 20} == {
            int(level["limit"]) for one in records["cgroup"] for level in one["levels"][:1]
        }
        assert {one["view"] for one in records["shm"]} == {"rank"}

        # and it ends by itself, after the trainer did
        (out / "go").touch()
        started.podman("kill", "--signal", "KILL", "found-trainer")
        assert started.until(lambda: started.ended("diag"), 20) in (0, 10)


def journal(started: Pod) -> dict[str, list[dict[str, Any]]]:
    """What was read of ranks, by source."""
    found: dict[str, list[dict[str, Any]]] = {"cgroup": [], "shm": []}
    for path in started.run_dir().glob("journal-*.jsonl.gz"):
        try:
            with gzip.open(path, "rt") as lines:
                for record in map(json.loads, lines):
                    if record.get("source") in found and record.get("rank") is not None:
                        found[record["source"]].append(record["payload"])
        except EOFError:  # it is being written
            continue
    return found


def test_without_the_right_to_look_it_says_which_line_of_the_manifest_is_missing(
    podman: Podman, tmp_path: Path
) -> None:
    # given a trainer of another user, and diag without SYS_PTRACE
    out = tmp_path / "out"
    boxes = [trainer("wait", out, user=1000), watcher(out, "--json", add=(), user=1001)]
    with pod(podman, "denied", boxes, tmp_path) as started:
        # when it waits
        said = sees(started, r"no rank yet; .*")[0]

        # then it counts what it cannot read, whose that is, and gives the line
        assert re.search(
            r"3 processes seen, 3 unreadable \(of uid 1000\): diag needs the same user or SYS_PTRACE", said
        )
        assert "securityContext: {runAsUser: 1000, capabilities: {add: [SYS_PTRACE]}}" in said

        # and when it is told to end, it does so at once, and its report says the same
        started.podman("stop", "--time", "10", "denied-diag")
        assert started.ended("diag") == 0
        ranks = not_checked(report(started))["ranks"]
        assert "3 unreadable" in ranks["reason"] and "SYS_PTRACE" in ranks["remedy"]


def test_its_death_does_not_touch_the_trainer(podman: Podman, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pod(podman, "death", [trainer("end", out), watcher(out)], tmp_path) as started:
        sees(started, "found the job")
        before = started.facts("trainer")["Pid"]

        started.podman("kill", "--signal", "KILL", "death-diag")
        started.until(lambda: started.ended("diag") is not None, 10)

        assert started.facts("trainer")["Pid"] == before and started.ended("trainer") is None
        (out / "go").touch()
        assert started.until(lambda: started.ended("trainer"), 20) == 0


def test_sigterm_gives_the_report_at_once(podman: Podman, tmp_path: Path) -> None:
    """As a native sidecar is ended: by SIGTERM, some seconds before SIGKILL."""
    out = tmp_path / "out"
    with pod(podman, "term", [trainer("wait", out), watcher(out, "--json")], tmp_path) as started:
        sees(started, "found the job")
        started.dump()

        podman("stop", "--time", "10", "term-diag")

        assert started.ended("diag") == 0
        assert report(started)["job"]["ranks_seen"] == 2
        assert json.loads((started.run_dir() / "run.json").read_text())["ended"] is True


def test_limit_of_the_trainers_container_that_killed_a_rank_is_named(podman: Podman, tmp_path: Path) -> None:
    # given ranks in a container of 256 MiB, one of which eats all of it
    out = tmp_path / "out"
    boxes = [trainer("eat", out, user=1000, memory="256Mi"), watcher(out, "--json")]
    with pod(podman, "oom", boxes, tmp_path) as started:
        sees(started, "found the job")
        started.dump()
        (out / "go").touch()

        # when the kernel killed it, and with it the job ended
        assert started.until(lambda: started.ended("diag"), 60) == 10

        # then diag, in a container of its own, outlived it and says so
        found = {finding["id"]: finding for finding in report(started)["findings"]}
        assert "host-oom" in found, found
        assert found["host-oom"]["ranks"] == [1]
        assert "256 MiB" in found["host-oom"]["summary"]


def test_hang_of_the_bundled_job_is_named_and_the_sidecar_ends_after_the_trainer(
    podman: Podman, tmp_path: Path
) -> None:
    """The real job: torchrun, torch, a DataLoader worker that stands still; all of it behind the border."""
    out = tmp_path / "out"
    job = Box(
        "trainer", (*JOB, "--fault", "data-hang"), user=1000, env={"DIAG_FAULT_DIR": str(out), "HOME": "/tmp"}
    )
    with pod(podman, "hang", [job, watcher(out, "--json")], tmp_path) as started:
        sees(started, r"found the job: pid \d+ \(.*torch\.distributed\.run", 60)

        # when it hangs
        sees(started, r"CRITICAL hang \(data_loading\)", 120)
        said = started.logs("diag")
        assert re.search(
            r"rank 1 has waited for a batch from DataLoader worker pid \d+",
            re.sub(r"\s*\ndiag\|\s*", " ", said),
        )

        # and then is ended
        podman("kill", "--signal", "KILL", "hang-trainer")

        # then diag ends by itself, and its report says what was checked, and what could not be
        assert started.until(lambda: started.ended("diag"), 30) == 10
        document = report(started)
        assert [
            (one["id"], one["class"], one["ranks"]) for one in document["findings"] if one["id"] == "hang"
        ] == [("hang", "data_loading", [1])]
        heard = not_checked(document)["output of ranks 0-1"]
        assert "pipe" in heard["reason"] and "--redirects 3" in heard["remedy"]


def test_healthy_job_ends_clear_with_what_its_ranks_printed_into_files_of_their_container(
    podman: Podman, tmp_path: Path
) -> None:
    # given a job that prints into a file which only its own container has
    out = tmp_path / "out"
    script = 'exec "$0" -m diag_job --iters 6 --workers 1 --step-seconds 1 > /tmp/train.log 2>&1'
    wrapper = ("-c", f"import os, sys; os.execv('/bin/sh', ['sh', '-c', {script!r}, sys.executable])")
    job = Box("trainer", wrapper, user=1000, env={"HOME": "/tmp"})
    with pod(podman, "healthy", [job, watcher(out, "--json", user=1000)], tmp_path) as started:
        # when it has run to its end
        assert started.until(lambda: started.ended("trainer"), 90, "trainer") == 0
        code = started.until(lambda: started.ended("diag"), 30)

        # then diag has followed its steps, and ended after it
        document = report(started)
        assert [
            one["id"] for one in document["findings"] if one["id"] != "shm-too-small"
        ] == []  # 64 MB is the runtime's default
        assert document["job"]["iteration"] == 6
        assert code in (0, 10) and "output of ranks 0-1" not in not_checked(document)


def test_process_namespace_that_ends_with_the_trainer_ends_diag_with_it(
    podman: Podman, tmp_path: Path
) -> None:
    """docker compose `pid: "service:trainer"` makes the trainer process 1: with its end the kernel kills diag
    too. What it wrote is left. So deploy/docker gives both the namespace of a third container, as a pod has
    it."""
    out = make_out(tmp_path)
    with (
        container(podman, "first", trainer("end", out), out),
        container(
            podman, "second", watcher(out), out, "--pid", "container:first", "--cap-add", "SYS_PTRACE"
        ) as second,
    ):
        second.until(lambda: "found the job: pid 1 (" in second.logs(), 30)

        (out / "go").touch()

        assert second.until(second.ended, 20) == 137
        assert list(out.glob("runs/*/journal-*.jsonl.gz"))


def test_process_namespace_of_a_third_container_lets_diag_write_its_report(
    podman: Podman, tmp_path: Path
) -> None:
    out = make_out(tmp_path)
    keeper = Box("keeper", ("-c", "import signal; signal.pause()"))
    shared = ("--pid", "container:keeper")
    with (
        container(podman, "keeper", keeper, out, "--init"),
        container(podman, "first", trainer("end", out, user=1000), out, *shared) as first,
        container(
            podman, "second", watcher(out, "--json"), out, *shared, "--cap-add", "SYS_PTRACE"
        ) as second,
    ):
        second.until(lambda: "found the job" in second.logs(), 30)
        second.dump(out)

        (out / "go").touch()

        assert first.until(first.ended, 20) == 0
        assert second.until(second.ended, 20) == 0
        assert json.loads(second.printed())["job"]["ranks_seen"] == 2
