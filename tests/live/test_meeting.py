"""Real gloo ranks that a shell script starts unlike each other: what differs is said, while they only wait."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("met", flush=True)
"""
# RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of each
LAUNCH = """#!/bin/bash
for one in "$@"; do
  IFS=, read RANK WORLD_SIZE MASTER_ADDR MASTER_PORT <<< "$one"
  export RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
  LOCAL_RANK=$RANK PYTHON train.py &
done
wait
"""


@pytest.fixture
def ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0)), other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def launched(tmp_path: Path, *ranks: str) -> list[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH.replace("PYTHON train.py", f"{sys.executable} {tmp_path}/train.py"))
    return ["bash", str(script), *ranks]


@pytest.mark.parametrize(
    ("ranks", "cause", "said"),
    [
        (("0,2,127.0.0.1,{0}", "1,2,127.0.0.1,{1}"), "port_differs", "{0} (rank 0), {1} (rank 1); rank 0 listens on port {0}"),
        (("0,3,127.0.0.1,{0}", "1,3,localhost,{0}", "1,3,127.0.0.1,{0}"), "duplicate_rank", "none as rank 2 of WORLD_SIZE 3"),
    ],
)  # fmt: skip
def test_what_differs_between_ranks_that_wait_is_said(
    tmp_path: Path, ports: tuple[int, int], ranks: tuple[str, ...], cause: str, said: str
) -> None:
    with live_run(tmp_path, launched(tmp_path, *(rank.format(*ports) for rank in ranks))) as run:
        change = run.until(lambda: run.opened("rendezvous-failure"), 180)

    found = change["finding"]
    assert (found["cause"], found["ranks"], found["severity"]) == (cause, [1], "critical")
    assert said.format(*ports) in found["summary"]


def test_ranks_with_several_names_of_one_address_meet_and_nothing_is_said(
    tmp_path: Path, ports: tuple[int, int]
) -> None:
    ranks = (f"0,2,localhost,{ports[0]}", f"1,2,127.0.0.1,{ports[0]}")
    with live_run(tmp_path, launched(tmp_path, *ranks)) as run:
        code = run.wait(180)

        assert code == 0 and run.text.count("met") == 2
        assert not run.changes()


# Of each agent of torchrun the number of nodes, its endpoint or its own number, and the id.
AGENTS = """#!/bin/bash
for one in "$@"; do
  PYTHON -m torch.distributed.run --nproc-per-node 1 --nnodes 2 $one train.py &
done
wait
"""


@pytest.mark.parametrize(
    ("agents", "cause", "said"),
    [
        (
            [f"--rdzv-backend c10d --rdzv-endpoint localhost:{{0}} --rdzv-id {run_id}" for run_id in "ab"],
            "rendezvous_ids_differ",
            "at localhost:{0} for 2 nodes, and with ids that differ: id a (pid ",
        ),
        (
            ["--node-rank 0 --master-addr 127.0.0.1 --master-port {0}"],
            "nodes_missing",
            "1 torchrun agent waits on this machine (pid ",
        ),
    ],
    ids=["ids", "one"],
)
def test_agents_that_never_start_a_rank_say_what_they_wait_for(
    tmp_path: Path, ports: tuple[int, int], agents: list[str], cause: str, said: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    script = tmp_path / "launch.sh"
    text = AGENTS.replace("PYTHON", sys.executable).replace("train.py", f"{tmp_path}/train.py")
    script.write_text(text)
    with live_run(tmp_path, ["bash", str(script), *(one.format(*ports) for one in agents)]) as run:
        change = run.until(run.hang, 180)

    found = change["finding"]
    assert (found["id"], found["cause"], found["ranks"]) == ("held-up", cause, [])
    assert "no rank was started for " in found["summary"] and said.format(*ports) in found["summary"]
