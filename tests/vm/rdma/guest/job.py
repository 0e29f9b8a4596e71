"""A training job of two ranks on "two nodes": `python -m tests.vm.rdma.guest.job SCENARIO`.

Its parent starts the ranks and waits for them; a rank opens RDMA as its scenario says, prints what NCCL
printed on two H200 "hosts" without RDMA, and then does a step every half second until it is told to stop
(SIGTERM).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.vm.guest.shell import as_user
from tests.vm.rdma.guest.containers import Container
from tests.vm.rdma.guest.hold import open_and_register
from tests.vm.rdma.guest.network import DEVICES
from tests.vm.rdma.scenarios import BY_NAME, Rank, Scenario

_NCCL_LINES = Path(__file__).parents[3] / "captures" / "nccl" / "2.28.9"
# NCCL 2.28.9, captured on 2 x H200 with played RDMA devices, 2026-11-21
_WARNING = "misc/ibvwrap.cc:178 NCCL WARN Call to ibv_reg_mr failed with error {}"


def main(scenario: Scenario) -> int:
    shared = tuple(filter(None, (os.environ.get("DIAG_RUN_DIR"),)))
    containers, ranks = [], []
    for number, rank in enumerate(scenario.ranks):
        prefix = as_user(0, rank.memlock)
        if rank.without is not None:
            containers.append(Container(f"{scenario.name}{number}", rank.without, shared))
            prefix += containers[-1].command
        env = {**os.environ, "RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
               "NODE_RANK": str(number), "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}  # fmt: skip
        words = [*prefix, sys.executable, "-u", "-m", "tests.vm.rdma.guest.job", scenario.name, str(number)]
        ranks.append(subprocess.Popen(words, env=env, cwd="/diag"))
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    codes = [rank.wait() for rank in ranks]
    for container in containers:
        container.remove()
    return max(codes)


def train(rank: Rank, number: int) -> int:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    print(f"[rank{number}] init_process_group", flush=True)
    if rank.registers:
        said = open_and_register(DEVICES[number], rank.registers)
        print(f"[rank{number}] rdma {json.dumps(said)}", flush=True)
        if said["errno"]:
            words = {"ENOMEM": "Cannot allocate memory", "EPERM": "Operation not permitted"}[
                str(said["errno"])
            ]
            _nccl([f"{os.uname().nodename}:{os.getpid()}:{os.getpid()} [0] {_WARNING.format(words)}\n"])
    if rank.nccl:
        _nccl(_nccl_lines(rank.nccl, number))
    print("The training of Epoch 0 starts...", flush=True)
    step = 0
    while not over.wait(0.5):
        step += 1
        print(f"[rank{number}] iteration {step:6d}/1000000 | loss: 5.6034E-02", flush=True)
    return 0


def _nccl_lines(case: str, number: int) -> list[str]:
    """Those of the capture until the job ends, with this machine's names."""
    text = (_NCCL_LINES / case / f"rank{number}.log").read_text()
    lines = [line for line in text.splitlines(keepends=True) if " NCCL " in line]
    theirs = lines[0].split(" ")[0].split(":")[1]
    ours, host = os.getpid(), os.uname().nodename
    names = {f"gpu-node-{number}:{theirs}:": f"{host}:{ours}:", f"eth0:192.0.2.1{number}": f"d{number}:192.0.2.{number + 1}",
             "mlx5_0": "rxe0", "mlx5_1": "rxe1"}  # fmt: skip
    for old, new in names.items():
        lines = [line.replace(old, new) for line in lines]
    return [line for line in lines if "Destroy" not in line and "Closing" not in line]


def _nccl(lines: list[str]) -> None:
    """Where NCCL writes: the file that NCCL_DEBUG_FILE names (%h host, %p pid), else stdout."""
    name = os.environ.get("NCCL_DEBUG_FILE")
    if name is None:
        print("".join(lines), end="", flush=True)
        return
    with open(name.replace("%h", os.uname().nodename).replace("%p", str(os.getpid())), "a") as file:
        file.writelines(lines)


if __name__ == "__main__":
    chosen = BY_NAME[sys.argv[1]]
    sys.exit(main(chosen) if len(sys.argv) == 2 else train(chosen.ranks[int(sys.argv[2])], int(sys.argv[2])))
