"""`diag run --on` on two nodes that share a run root: all of the job is ended, by one decision, or none of it."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.netns.job import PORT, TOKEN, ClusterJob, NodeRun
from tests.netlab import Lab, make_lab, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]
JOB = Path(__file__).parent / "gloo_job.py"
RULE = ("--on", "hang=end:75", "--after", "2", "--grace", "2")
HUNG_SECONDS = 150.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    pytest.importorskip("torch", reason="needs torch (make test installs it)")
    if reason := why_not("nft"):
        pytest.skip(reason)
    with make_lab(2, tmp_path / "lab") as lab:
        yield lab


class SharedRun(NodeRun):
    """Its run directory is the newest of this node in the root that all share."""

    def __init__(self, *words: Any, root: Path) -> None:
        super().__init__(*words)
        self.root = root

    @property
    def run_dir(self) -> Path | None:
        for path in sorted(self.root.glob("*/run.json")):
            if json.loads(path.read_text())["host"] == self.node.name:
                return path.parent
        return None

    def changes(self) -> list[dict[str, Any]]:
        path = self.run_dir
        text = (path / "findings.jsonl").read_text() if path and (path / "findings.jsonl").exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def actions(self) -> list[dict[str, Any]]:
        path = self.run_dir
        text = (path / "actions.jsonl").read_text() if path and (path / "actions.jsonl").exists() else ""
        return [json.loads(line) for line in text.splitlines()]


Start = Callable[..., ClusterJob]


@pytest.fixture
def start(lab: Lab) -> Iterator[Start]:
    jobs: list[ClusterJob] = []

    def begin(
        steps: int, hang_at: int, *, options: Sequence[str] = RULE, shared: bool = True, leaves: bool = False
    ) -> ClusterJob:
        command = [sys.executable, str(JOB), str(steps), str(hang_at), str(lab.folder)]

        def environment(rank: int) -> dict[str, str]:
            return {
                "NODE": str(rank), "NODES": "2", "MASTER_ADDR": lab[0].address, "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1", "DIAG_TOKEN": TOKEN, "LEAVES": str(int(leaves)),
            }  # fmt: skip

        job = ClusterJob(lab, lambda rank: command, options, environment)
        for rank in range(2):
            root = lab.folder / ("runs" if shared else f"runs-{rank}")
            given = [*options, "--run-root", str(root)]
            job.runs[rank] = SharedRun(lab[rank], command, given, environment(rank), root=root)
        jobs.append(job)
        return job

    yield begin
    for node in lab.nodes:
        node.kill_all()
    for job in jobs:
        for run in job.runs.values():
            run.process.wait(30)
            run.close()


def actions(job: ClusterJob) -> list[list[tuple[str, int]]]:
    return [[(one["what"], one.get("lease", 0)) for one in run.actions()] for run in job.runs.values()]  # type: ignore[attr-defined]


def is_told(job: ClusterJob, *nodes: int) -> bool:
    found = (job[node].hang() for node in nodes)
    return all(one and one["finding"]["id"] == "hang" for one in found)


def numbers(lab: Lab) -> list[str]:
    return sorted(path.name for path in lab.folder.glob("runs*/.leases/*/*") if path.name.startswith("lease"))


@pytest.mark.parametrize("again", [False, True])
def test_part_whose_launcher_ends_of_the_other_part_s_end_does_as_was_agreed(
    lab: Lab, start: Start, *, again: bool
) -> None:
    """Whichever is first."""
    rule = "hang=restart" if again else "hang=end:75"
    job = start(40, 8, options=("--on", rule, "--after", "2", "--grace", "2"), leaves=True)
    codes = job.await_end(seconds=2 * HUNG_SECONDS)

    assert codes == ({0: 0, 1: 0} if again else {0: 75, 1: 75}), job.text
    assert (job.iteration == 40) is again
    assert all(("attempt 2 of the command has begun" in run.text) is again for run in job.runs.values())
    assert numbers(lab) == ["lease-1"]


def test_hang_is_ended_on_every_node_by_one_order_and_nothing_of_the_job_is_left(
    lab: Lab, start: Start
) -> None:
    job = start(400, 8)
    codes = job.await_end(seconds=HUNG_SECONDS)

    assert codes == {0: 75, 1: 75}, job.text
    assert [len(node.processes()) for node in lab.nodes] == [0, 0]
    assert numbers(lab) == ["lease-1"]
    told = actions(job)
    assert [(what, number) for what, number in told[0] + told[1] if what == "orders"] == [("orders", 1)]
    for acts, one in zip(("acts", "follows"), told, strict=True):
        done = [(what, number) for what, number in one if what not in ("holds", "evidence", "orders")]
        assert done[:3] == [("agrees", 1), (acts, 1), ("term", 1)] and done[-1] == ("ended", 1), told
    for run in job.runs.values():
        assert run.run_dir is not None and list((run.run_dir / "dumps").glob("*.tar.gz"))


def test_hang_is_started_again_on_every_node_together_and_comes_to_its_end(lab: Lab, start: Start) -> None:
    job = start(40, 8, options=("--on", "hang=restart", "--after", "2", "--grace", "2"))
    job.until(lambda: job.iteration >= 40, 2 * HUNG_SECONDS, "the last step")

    told = actions(job)
    assert [(what, number) for what, number in told[0] + told[1] if what == "orders"] == [("orders", 1)]
    for run in job.runs.values():
        assert "attempt 2 of the command has begun" in run.text, job.text
        ended = re.search(r"all of the command has ended", run.text)
        begun = re.search(r"attempt 2 of the command has begun", run.text)
        assert ended and begun and ended.start() < begun.start()
    assert numbers(lab) == ["lease-1"]


def test_healthy_job_goes_to_its_end_without_a_number_of_the_lease(lab: Lab, start: Start) -> None:
    job = start(60, 0)
    job.await_step(60)

    assert numbers(lab) == [] and actions(job) == [[], []]
    words = [path.name for path in lab.folder.glob("runs/.leases/*/node-*")]
    assert len(words) == 2  # they were ready for it


def test_nodes_without_a_shared_run_root_end_nothing_and_say_so_once(lab: Lab, start: Start) -> None:
    job = start(400, 8, shared=False)
    job.until(lambda: is_told(job, 0, 1), HUNG_SECONDS, "the hang")
    line = re.compile(r"diag: --on hang=end:75 does not act: the job has other nodes, and no lease .*")
    job.until(lambda: line.search(job[0].text), 60, "the line")
    job[0].node.within(lambda: None)
    told = actions(job)
    assert {what for one in told for what, _ in one} == {"holds"}
    assert len(line.findall(job[0].text)) == 1 and line.search(job[1].text) is None
    assert all(run.process.poll() is None for run in job.runs.values())


def test_hubs_that_are_cut_off_from_each_other_end_nothing(lab: Lab, start: Start) -> None:
    """The job itself reaches all its nodes, and hangs; they share the run root."""
    job = start(400, 60)
    job.await_step(5)
    lab[1].drop_port(PORT)
    job.until(lambda: job.iteration >= 59, 120, "the hang's step")
    job.until(lambda: all(one.actions() for one in job.runs.values()) or any(one.hang() for one in job.runs.values()),
              HUNG_SECONDS, "a look at it")  # type: ignore[attr-defined]  # fmt: skip
    assert {what for one in actions(job) for what, _ in one} <= {"holds", "evidence"} and numbers(lab) == []
    assert all(run.process.poll() is None for run in job.runs.values())


def test_decider_that_is_killed_before_it_orders_ends_nothing(lab: Lab, start: Start) -> None:
    """Its part of the job runs on, unwatched: the other one cannot see that it hangs, and acts for nobody."""
    job = start(400, 8, options=("--on", "hang=end:75", "--after", "20", "--grace", "2"))
    job.until(lambda: is_told(job, 0, 1), HUNG_SECONDS, "the hang")
    hub = int(job[0].run_json()["hub_pid"])
    job[0].node.call("kill", f"-{int(signal.SIGKILL)}", str(hub))
    job.until(lambda: "the hub ended while CMD was running" in job[0].text, 30, "the hub's end")
    job.until(lambda: any(what == "holds" for what, _ in actions(job)[1]), 90, "node 1 to look")
    assert numbers(lab) == [] and all(run.process.poll() is None for run in job.runs.values())
