"""Real gloo ranks under `diag run` that hang inside of their own code: in a loop, at a lock that a peer has, behind a call that
a destructor made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run
from tests.sources.remote_stacks import KNOWN

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.version_info[:2] not in KNOWN, reason="this Python is not read from its memory"),
]

PROGRAM = """
import fcntl, os, random, sqlite3, sys, time, torch, torch.distributed as dist

fault, folder = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if fault == "places":
    place = open(f"{folder}/place{rank % (world - 1)}", "w")
    while rank == world - 1 and not os.path.exists(f"{folder}/taken0"):
        time.sleep(0.1)
    fcntl.flock(place, fcntl.LOCK_EX)
    open(f"{folder}/taken{rank}", "w").close()
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
weights = torch.ones(8)


def fill(sizes, room):
    used = 0
    while used < room // 2:
        size = random.choice(sizes)
        if used + size <= room:
            used += size
    return used


def play(seconds):
    end, games = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        left = 2000
        while left:
            left -= random.choice([0, 1])
        games += 1
    return games


def meet(where):
    while store.add(where, 0) != world:
        time.sleep(0.02)


class Window:
    def close(self):
        dist.barrier()

    def __del__(self):
        self.close()


def opened():
    dist.barrier()
    return Window()


if fault == "database":
    rows = sqlite3.connect(f"{folder}/runs.db", timeout=900)
    rows.execute("create table if not exists runs (step)")
kept = None
for step in range(200):
    dist.all_reduce(weights)
    if fault == "loop":
        fill([9, 9] if rank == 1 and step == 40 else [2, 3], 8)
    if fault == "clock" and rank == 1 and step == 40:
        play(600)
    if fault == "count" and step % 20 == 0:
        for _ in range(2 if rank == 1 and step == 40 else 1):
            store.add(f"met/{step}", 1)
            time.sleep(rank == 1)  # the others see the right number meanwhile
        meet(f"met/{step}")
    if fault == "database" and rank < 2:
        while step == 40 and rank == 1 and not os.path.exists(f"{folder}/begun"):
            time.sleep(0.1)
        rows.execute("insert into runs values (?)", (step,))
        if rank == 1 or step != 40:
            rows.commit()
        else:
            open(f"{folder}/begun", "w").close()
            dist.all_reduce(weights)
    if fault == "freed" and step == 40:
        window = opened()
        kept = window if rank == 0 else None
        del window
        window = opened()
    if rank == 0:
        print(f" iteration {step + 1:8d}/     200 | loss: 1.0 | grad norm: 2.0 |", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("fault", "cause", "ranks", "shown"),
    [
        (
            "loop",
            "loop_changes_nothing",
            [1],
            "`used += size` is only under `if used + size <= room:`, which was not met",
        ),
        (
            "count",
            "condition_was_met",
            [1],
            "have come past this loop in that round (`step` is 41 there and 40 here)",
        ),
        ("clock", "loop_until_time", [1], "goes by a clock: it goes on until"),
        ("database", "keeps_database_locked", [0], "of which rank 0 has SQLite's RESERVED lock"),
        ("places", "fewer_places_than_ranks", [2], "ranks 0-1 have one lock each of 2 in"),
        ("freed", "call_in_destructor", [0], "which `__del__` calls ("),
    ],
)
def test_what_holds_a_rank_up_inside_of_its_own_code_is_said(
    tmp_path: Path, fault: str, cause: str, ranks: list[int], shown: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "3",
        str(script),
        fault,
        str(tmp_path),
    ]
    with live_run(tmp_path, argv) as run:
        run.until(lambda: (run.hang() or {}).get("finding", {}).get("cause") == cause, 150)
        hang = run.hang()["finding"]

    assert hang["ranks"] == ranks
    assert shown in hang["summary"]
