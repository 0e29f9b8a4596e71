"""Real gloo ranks that no launcher numbers: who they are is known from their process group."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.liverun import LiveRun, live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

# `train.py HOW`: until the file `end` is there, or with "hang" until rank 2 stays away from its 20th step.
PROGRAM = """
import multiprocessing, os, subprocess, sys, threading, time, torch, torch.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
STORE = f"file://{HERE}/store"

def train(rank, world, hangs=False, store=STORE):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    say(f"joined {rank} {os.getpid()}")
    step = 0
    while True:
        step += 1
        if hangs and step == 20 and rank == 2:
            stays_in_its_own_code()
        ends = torch.tensor([os.path.exists(f"{HERE}/end")], dtype=torch.int32)
        dist.all_reduce(ends)
        if ends.item():
            break
        time.sleep(0.1)
        if rank == 0:
            say(f" iteration {step:8d}/{10_000:8d} | loss: 1.0 | grad norm: 2.0 |")
    dist.destroy_process_group()

def say(line):
    os.write(1, f"{line}\\n".encode())  # whole: with PYTHONUNBUFFERED print() lets others in before the line's end

def stays_in_its_own_code():
    time.sleep(3600)

def with_own_environment(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

if __name__ == "__main__":
    how = sys.argv[1]
    if how in ("spawn", "hang"):
        torch.multiprocessing.spawn(train, (3, how == "hang"), nprocs=3)
    elif how == "process":
        ranks = [multiprocessing.get_context("fork").Process(target=train, args=(rank, 2)) for rank in range(2)]
        [rank.start() for rank in ranks], [rank.join() for rank in ranks]
    elif how == "environment":
        ranks = [subprocess.Popen([sys.executable, __file__, "itself", str(rank)]) for rank in range(2)]
        [rank.wait() for rank in ranks]
    elif how == "itself":
        with_own_environment(int(sys.argv[2]))
    elif how == "thread":
        thread = threading.Thread(target=train, args=(0, 1), name="trainer")
        thread.start(), thread.join()
"""


def fetch(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=15) as answer:
        return json.load(answer)


def joined(run: LiveRun) -> dict[int, int]:
    """Pids by rank, as the ranks print them."""
    lines = [line.split() for line in run.text.splitlines() if line.startswith("joined ")]
    return {int(rank): int(pid) for _, rank, pid in lines}


def command(path: Path, how: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script), how]


def ranks_of(run: LiveRun, world: int) -> list[dict[str, Any]]:
    """Those that diag shows, once all have joined and it shows as many."""
    run.until(lambda: len(joined(run)) == world, 120)
    url = run.run_json()["url"]
    return run.until(lambda: (rows := fetch(f"{url}/ranks")["ranks"]) and len(rows) == world and rows, 60)


@pytest.mark.parametrize(("how", "world"), [("spawn", 3), ("process", 2), ("environment", 2), ("thread", 1)])
def test_ranks_are_who_the_process_group_says(tmp_path: Path, how: str, world: int) -> None:
    with live_run(tmp_path, command(tmp_path, how), env={"DIAG_LONE_PROCESS_SECONDS": "120"}) as run:
        rows = ranks_of(run, world)
        report = fetch(f"{run.run_json()['url']}/findings")
        (tmp_path / "end").touch()
        code = run.wait(60)

    assert {row["rank"]: row["pid"] for row in rows} == joined(run)
    assert (report["job"]["world_size"], report["job"]["ranks_seen"]) == (world, world)
    assert code == 0
    assert "as rank 0" not in run.text


def test_parent_of_spawn_that_was_taken_for_rank_0_is_none_once_its_children_have_joined(
    tmp_path: Path,
) -> None:
    with live_run(tmp_path, command(tmp_path, "spawn"), env={"DIAG_LONE_PROCESS_SECONDS": "0"}) as run:
        run.until(lambda: "as rank 0" in run.text, 60)
        ranks = {row["rank"]: row["pid"] for row in ranks_of(run, 3)}
        report = fetch(f"{run.run_json()['url']}/findings")

    assert ranks == joined(run)
    assert "is not a rank: processes that it started have joined" in run.text
    assert report["findings"] == []


def test_hang_below_spawn_names_the_rank_that_stays_away(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "hang")) as run:
        run.until(run.hang, 120)
        hang = run.hang()["finding"]

    assert (hang["ranks"], hang["waiting_ranks"]) == ([2], [0, 1])
    assert "stays_in_its_own_code" in hang["summary"]


def test_thread_that_trains_is_the_one_that_is_shown(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "thread")) as run:
        ranks_of(run, 1)
        url = run.run_json()["url"]

        def is_trainer() -> bool:
            threads = (fetch(f"{url}/ranks/0/stacks")["main"] or {"threads": []})["threads"]
            return any(
                one["judged"] and any(frame["function"] == "train" for frame in one["frames"])
                for one in threads
            )

        run.until(is_trainer, 60)


def test_one_process_without_a_group_is_rank_0_of_1(tmp_path: Path) -> None:
    script = "import torch.distributed, time\nprint('imported', flush=True)\ntime.sleep(3600)"
    env = {"DIAG_LONE_PROCESS_SECONDS": "2"}
    with live_run(tmp_path, [sys.executable, "-c", script], env=env) as run:
        run.until(lambda: "as rank 0" in run.text and "imported" in run.text, 60)
        url = run.run_json()["url"]
        rows = run.until(lambda: fetch(f"{url}/ranks")["ranks"], 30)
        report = fetch(f"{url}/findings")
        assert run.run_dir is not None
        hooked = [path.name for path in run.run_dir.glob("hook.*")]

    assert [row["rank"] for row in rows] == [0]
    assert (report["job"]["world_size"], report["job"]["ranks_seen"], hooked) == (1, 1, [])
