"""One rank a node on gloo, that hangs at a step for a reason that cannot pass: `python gloo_job.py STEPS HANG_AT FOLDER`, with
NODE and NODES in the environment, and MASTER_ADDR. Its launcher stays when its rank has ended, but with LEAVES=1."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def launch() -> int:
    node, nodes = os.environ["NODE"], os.environ["NODES"]
    given = {
        "RANK": node,
        "WORLD_SIZE": nodes,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": node,
    }
    rank = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **given, "MASTER_PORT": "29519"})
    code = rank.wait()
    if os.environ.get("LEAVES") != "1":
        time.sleep(600)  # as one that waits for its agent's peers
    return code


def train(steps: int, hang_at: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(1, steps + 1):
        if step == hang_at and dist.get_rank() == 1 and os.environ.get("DIAG_ATTEMPT", "1") == "1":
            fifo = folder / "shard.fifo"
            os.mkfifo(fifo)
            fifo.read_bytes()
        dist.all_reduce(torch.ones(1))
        time.sleep(0.3)
        print({"loss": round(1 / step, 4), "iteration": f"{step}/{steps}"}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(launch())
    train(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
