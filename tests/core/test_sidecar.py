"""A real sidecar beside a real Python process: what it sends, what it does when told, and when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers.rank_context import RankContext
from diag.agent.samplers.sampler import Reporter
from diag.agent.sidecar import Sidecar as Inner
from diag.agent.stack_sampler import RankStacks, StackSampler
from diag.model import Record
from diag.sources.stacks import pyspy
from tests.core.sidecars import (
    ROOT,
    STACKS,
    beside,
    functions,
    is_gone,
    needs_pyspy,
    task_of,
    ticks,
    wait_for,
)


@needs_pyspy
def test_every_source_of_a_rank_arrives_as_a_record_of_that_rank(rank: subprocess.Popen[bytes]) -> None:
    # given a sidecar, when it has looked at all there is
    with beside(rank) as sidecar:
        wanted = {"proc", "cgroup", "shm", "rdma_access", STACKS}
        sidecar.until(lambda message: wanted <= {m.get("source") for m in sidecar.seen})

        # then these are records with the reader's clock, and /proc was read in both ways
        records = [Record.from_json(message) for message in sidecar.seen if "source" in message]
        assert {record.rank for record in records} == {3}
        assert all(
            record.emitted is not None and abs(record.emitted - time.time()) < 60 for record in records
        )
        payloads = [record.payload for record in records if record.source == "proc"]
        assert any("stat" in payload for payload in payloads) and any(
            "limits" in str(list(payload)) for payload in payloads
        )
        assert "waits_for_a_batch" in functions(next(m for m in sidecar.seen if m.get("source") == STACKS))
        assert all(message["took"] >= 0 for message in sidecar.seen if "took" in message)


def children_of(message: dict[str, Any]) -> list[int]:
    """Of a record of /proc."""
    return [int(child["stat"].split()[0]) for child in message["payload"].get("children", ())]


def test_rank_that_it_started_is_no_child_of_it(rank: subprocess.Popen[bytes]) -> None:
    # given a rank with a child, which counts as such
    with beside(rank) as sidecar:
        [child] = children_of(sidecar.until(lambda one: "stat" in one.get("payload", {})))

        # when that proves to be another rank
        sidecar.order({"other_ranks": [child]})

        # then neither its CPU nor its stack nor its waits are read here any more
        sidecar.until(lambda one: "stat" in one.get("payload", {}) and not children_of(one))
        sidecar.order({"dump": "all", "deadline": 10.0})
        sidecar.until(lambda one: one.get("dumped") == "all")
    after = [one["payload"] for one in sidecar.seen if one.get("source") in ("waits", STACKS)][-2:]
    assert after and child not in [payload["pid"] for payload in after]
    assert all(str(child) not in payload.get("processes", {}) for payload in after)


@needs_pyspy
def test_suspicion_makes_it_look_at_once_and_at_the_children_too(rank: subprocess.Popen[bytes]) -> None:
    # given a sidecar that has taken its stack and would take the next in a minute
    with beside(rank) as sidecar:
        sidecar.source(STACKS)
        sidecar.source("proc")

        # when it is told to look closer
        sidecar.order({"mode": "closer"})

        # then the child's stack comes
        child = sidecar.until(
            lambda message: (
                message.get("source") == STACKS and message["payload"].get("parent_pid") == rank.pid
            )
        )
        assert "reads_a_shard" in functions(child)


def test_suspicion_reads_anew_what_the_rank_has_of_rdma(rank: subprocess.Popen[bytes]) -> None:
    # given a sidecar that has looked once, and would again in a minute
    with beside(rank) as sidecar:
        sidecar.source("rdma_access")

        sidecar.order({"mode": "closer"})

        assert sidecar.source("rdma_access")["payload"]["pid"] == rank.pid


@needs_pyspy
def test_dump_of_a_stopped_rank_is_answered_in_time_and_leaves_it_stopped(
    rank: subprocess.Popen[bytes],
) -> None:
    with beside(rank) as sidecar:
        sidecar.source(STACKS)
        os.kill(rank.pid, signal.SIGSTOP)
        wait_for(
            lambda: Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "stopped"
        )

        began = time.monotonic()
        sidecar.order({"dump": "dump-1", "deadline": 6.0})
        done = sidecar.until(lambda message: message.get("dumped") == "dump-1", timeout=8.0)

        assert time.monotonic() - began < 7.0
        assert (done["rank"], done["missing"]) == (3, [])
        assert Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        stacks = [message for message in sidecar.seen if message.get("source") == STACKS][1:]
        assert {message["payload"].get("parent_pid") for message in stacks} == {None, rank.pid}


def probes_of(done: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["probe"]: row for row in done["probes"]}


@needs_pyspy
def test_dump_tells_what_each_part_cost_and_who_read_the_stack(rank: subprocess.Popen[bytes]) -> None:
    with beside(rank) as sidecar:
        sidecar.order({"dump": "dump-1", "deadline": 6.0})

        probes = probes_of(sidecar.until(lambda message: message.get("dumped") == "dump-1", timeout=8.0))

    assert set(probes) == {
        "proc",
        "stack",
        "child_stacks",
        "flight_recorder",
        "cgroup",
        "rdma_access",
        "waits",
        "shm",
        "versions",
        "open_files",
        "memory_map",
    }
    assert probes["stack"]["reader"] == STACKS
    assert all(
        0 < row["seconds"] < 6 and row["ok"] and not row["paused_target"] for row in probes.values()
    ), probes


@needs_pyspy
def test_native_frames_come_when_ordered_and_the_rank_goes_on(rank: subprocess.Popen[bytes]) -> None:
    with beside(rank) as sidecar:
        sidecar.order({"native": "native-1", "deadline": 20.0})

        done = sidecar.until(lambda message: message.get("dumped") == "native-1", timeout=30.0)

    assert done["rank"] == 3 and done["seconds"] > 0
    threads = done["native"].get("stdout")
    assert threads, done
    names = [frame["name"] for thread in threads for frame in thread["frames"]]
    assert "waits_for_a_batch" in names and len(names) > 2  # C frames below the Python ones
    assert Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] in "SR"


def test_recorder_of_a_stopped_rank_is_not_asked_and_said_to_be_missing(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    # given a stopped rank whose worker server listens
    os.kill(rank.pid, signal.SIGSTOP)
    wait_for(
        lambda: Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "stopped"
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / f"w.{rank.pid}.sock"))
        server.listen()
        server.setblocking(False)

        # when it is dumped
        with beside(rank, run_dir=str(tmp_path)) as sidecar:
            began = time.monotonic()
            sidecar.order({"dump": "dump-1", "deadline": 6.0})
            done = sidecar.until(lambda message: message.get("dumped") == "dump-1", timeout=8.0)

        # then nobody has waited for it, and nothing is left there to be answered later
        assert time.monotonic() - began < 3.0
        assert done["missing"] == ["no collectives: the process is stopped (state T) and cannot answer"]
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.skipif(STACKS != "remote_stack", reason="this Python is not read from its memory")
def test_part_that_hangs_is_missing_and_takes_nothing_from_the_others(rank: subprocess.Popen[bytes]) -> None:
    # given a sidecar whose reading of the stacks does not come back, as the kernel does it over a sick
    # process
    sent: list[dict[str, Any]] = []
    inner = Inner(task_of(rank), sent.append)
    assert "threads" in inner[StackSampler].stacks.memory.dump(rank.pid)
    lock = inner[StackSampler].stacks.memory._known[rank.pid].lock
    inner[StackSampler].stacks.pyspy = pyspy.PySpy("/no/such/py-spy")

    # when a dump is made meanwhile
    with lock:
        began = time.monotonic()
        inner.command({"dump": "d", "deadline": 1.0})
        wait_for(lambda: "dumped" in sent[-1] if sent else False, "an answer")
        took = time.monotonic() - began

    # then it is answered within its deadline, with the other parts
    assert took < 2.0
    probes = probes_of(sent[-1])
    assert [name for name, row in probes.items() if not row["ok"]] == ["stack"]
    assert "has not come back from the kernel" in sent[-1]["missing"][0]
    assert {"proc", "cgroup"} <= {message.get("source") for message in sent}


def test_dump_of_what_nobody_can_read_says_why_there_is_no_stack() -> None:
    # given a rank that is no Python, and no py-spy
    sent: list[dict[str, Any]] = []
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        inner = Inner(task_of(process), sent.append)
        inner[StackSampler].stacks.pyspy = pyspy.PySpy("/no/such/py-spy")

        inner.command({"dump": "d", "deadline": 3.0})
        wait_for(lambda: "dumped" in sent[-1] if sent else False, "an answer")
        process.kill()

    [reason] = sent[-1]["missing"]
    assert reason.startswith("no stack: /no/such/py-spy: No such file or directory: pip install py-spy")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 9), (signal.SIGTERM, 15)])
def test_death_of_the_rank_is_told_with_its_signal(
    rank: subprocess.Popen[bytes], number: int, status: int
) -> None:
    with beside(rank, node_seconds=60.0) as sidecar:
        sidecar.source("cgroup")
        sidecar.source("shm")
        before = len(sidecar.seen)

        os.kill(rank.pid, number)

        payload = sidecar.source("exits")["payload"]
        assert (payload["pid"], payload["status"]) == (rank.pid, status)
        # the memory cgroup was read after the death and before it was told: the OOM counter of that moment
        assert "cgroup" in [message.get("source") for message in sidecar.seen[before:]]


def test_rank_that_is_gone_before_the_sidecar_looks_is_told_as_gone(rank: subprocess.Popen[bytes]) -> None:
    start = ticks(rank.pid)
    os.killpg(rank.pid, signal.SIGKILL)
    rank.communicate()

    with beside(rank, start_ticks=start) as sidecar:
        payload = sidecar.source("exits")["payload"]

    assert (payload["pid"], payload["status"]) == (rank.pid, None)


def test_pid_that_was_used_again_is_not_watched_as_the_rank(rank: subprocess.Popen[bytes]) -> None:
    with beside(rank, start_ticks=ticks(rank.pid) - 1) as sidecar:
        payload = sidecar.source("exits")["payload"]

        assert payload["status"] is None
        assert not any(
            message.get("source") == "proc" and "stat" in message["payload"] for message in sidecar.seen
        )


def test_sidecar_ends_when_the_hub_closes_its_orders_even_while_the_rank_is_stopped(
    rank: subprocess.Popen[bytes],
) -> None:
    with beside(rank) as sidecar:
        sidecar.source("proc")
        os.kill(rank.pid, signal.SIGSTOP)

        assert sidecar.process.stdin is not None
        sidecar.process.stdin.close()

        assert sidecar.process.wait(1.0) == 0


def test_sidecar_of_a_killed_hub_is_gone_in_a_second(rank: subprocess.Popen[bytes]) -> None:
    # given a hub with a sidecar
    code = (
        "import time\nfrom diag.model import Placement\n"
        "from diag.settings import load\nfrom diag.agent.sidecar_pool import SidecarPool\n"
        "from diag.agent.samplers.sampler import Reporter\n"
        "pool = SidecarPool(load(), None, 0, Reporter(lambda record: None))\n"
        f"pool.watch(Placement(0, 0, 1, 'n', {rank.pid}, {ticks(rank.pid)}))\n"
        "print(pool.processes()[0], flush=True)\ntime.sleep(60)"
    )
    hub = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert hub.stdout is not None
    pid = int(hub.stdout.readline())
    wait_for(
        lambda: b"diag.agent.sidecar" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the sidecar was started"
    )

    # when it is killed
    hub.kill()
    hub.communicate()

    # then nothing of it is left
    wait_for(lambda: is_gone(pid), "the sidecar ended", seconds=5.0)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"5",
        b"[]",
        b'"mode"',
        b'"dump"',
        b"\xff\xfe",
        b'{"dump": 1}',
        b'{"dump": 1, "deadline": "x"}',
        b"[" * 50_000,
    ],
)
def test_order_that_is_garbage_is_left_out(rank: subprocess.Popen[bytes], line: bytes) -> None:
    with beside(rank, stack_seconds=60.0) as sidecar:
        sidecar.order(line)
        sidecar.order({"dump": "after", "deadline": 3.0})

        assert sidecar.until(lambda message: message.get("dumped") == "after")["rank"] == 3


def test_sidecar_steps_back_for_the_job_and_loads_nothing_heavy(rank: subprocess.Popen[bytes]) -> None:
    with beside(rank) as sidecar:
        sidecar.source("proc")
        pid = sidecar.process.pid

        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "500"
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert not any(name in maps for name in ("torch", "pydantic", "psutil"))


def test_sidecar_beside_a_pid_that_is_anothers_by_now_tells_that_the_rank_is_gone_and_looks_at_nothing(
    rank: subprocess.Popen[bytes],
) -> None:
    task = {
        "rank": 3,
        "pid": rank.pid,
        "start_ticks": ticks(rank.pid) - 1,
        "run_dir": None,
        "stack_signal": 0,
        "stack_seconds": 0.5,
        "close_stack_seconds": 0.5,
        "proc_seconds": 0.2,
        "node_seconds": 0.5,
    }

    done = subprocess.run(
        [sys.executable, "-m", "diag.agent.sidecar", json.dumps(task)],
        stdin=subprocess.PIPE,
        capture_output=True,
        cwd=ROOT,
        timeout=30,
        check=True,
    )

    sent = [json.loads(line) for line in done.stdout.splitlines()]
    assert [message["source"] for message in sent] == ["exits"]
    assert sent[0]["payload"]["how"] == "gone before it was watched"


def test_stacks_of_a_process_that_was_given_the_ranks_pid_are_not_read(rank: subprocess.Popen[bytes]) -> None:
    said: list[Any] = []

    def stacks(start_ticks: int) -> RankStacks:
        task = {**task_of(rank), "start_ticks": start_ticks}
        return RankStacks(RankContext(task, Reporter(said.append)))

    assert stacks(ticks(rank.pid)).main(5.0, urgent=True)[1] == "" and len(said) == 1
    stranger = stacks(ticks(rank.pid) - 1)
    assert stranger.main(5.0, urgent=True) == ("", "the process is gone")
    assert stranger.native(5.0)["failed"] == "gone" and len(said) == 1


def test_stacks_of_a_stranger_are_read_by_its_memory_alone(rank: subprocess.Popen[bytes]) -> None:
    said: list[Any] = []
    stacks = RankStacks(RankContext({**task_of(rank), "start_ticks": ticks(rank.pid)}, Reporter(said.append)))
    stacks.pyspy.dump = stacks.memory.dump = None  # type: ignore[method-assign, assignment]
    denied, read, ended = (
        rank.pid,
        os.getpid(),
        (os.getpid(), ticks(os.getpid()) - 1),
    )  # whose pid another has
    asked: list[int] = []

    def dump(pid: int, deadline: float, *, parent_pid: int | None = None) -> dict[str, Any]:
        asked.append(pid)
        return {
            "pid": pid,
            "parent_pid": parent_pid,
            **({"failed": "denied"} if pid == denied else {"codes": [], "threads": []}),
        }

    stacks.memory.dump = dump  # type: ignore[method-assign, assignment]
    stacks.strangers([ended, *((pid, ticks(pid)) for pid in (denied, read))], time.monotonic() + 5.0)

    assert asked == [denied, read]
    assert [(one.source, one.payload["pid"]) for one in said] == [("remote_stack", read)]


@pytest.mark.parametrize("deep", [False, True])
def test_dump_lists_what_the_rank_has_open_and_of_culprits_what_their_children_have(
    rank: subprocess.Popen[bytes], deep: bool
) -> None:
    with beside(rank) as sidecar:
        sidecar.order({"dump": "dump-1", "deadline": 6.0, "deep": deep})

        done = sidecar.until(lambda message: message.get("dumped") == "dump-1", timeout=8.0)

    pids = [row["pid"] for row in done["processes"]]
    assert pids[0] == rank.pid
    assert (len(pids) > 1) == deep
    assert all(row["open_files"]["listed"] and row["memory_map"]["bytes"] for row in done["processes"])


def test_rank_without_a_server_costs_no_http_library(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "import diag.agent.sidecar\n"
        "from diag.sources.collectives import flight_recorder\n"
        "print(flight_recorder.look(1, Path(sys.argv[1]))['failed'])\n"
        "print(*sorted({'http.client', 'ssl', 'diag.state.rank_view', 'asyncio', 'yaml'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.splitlines() == ["no_socket", ""]
