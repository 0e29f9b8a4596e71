"""A job without torch, for tests: `python stuck_ranks.py RANKS STEPS` starts its ranks, which train STEPS
steps of 0.1 s.

Then the last rank is stopped by a signal and the others wait for it. Where UNTIL names a file, they train
until it is there instead, and end well. NODE_RANK and NNODES: these are the ranks of one node of several.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def rank_main(rank: int, world: int, steps: int, until: str) -> None:
    number = 0
    while not Path(until).exists() if until else number < steps:
        number += 1
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            sum(range(500))
            time.sleep(0.01)
        if rank == 0:
            print(f" iteration {number:8d}/{1000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
    if until:
        return
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    waits_for_the_others()


def waits_for_the_others() -> None:
    time.sleep(3600)


def main() -> int:
    world, steps = int(sys.argv[1]), int(sys.argv[2])
    if "RANK" in os.environ:
        rank_main(int(os.environ["RANK"]), world, steps, os.environ.get("UNTIL", ""))
        return 0
    node, nodes = int(os.environ.get("NODE_RANK", "0")), int(os.environ.get("NNODES", "1"))
    children = [
        subprocess.Popen(
            [sys.executable, "-u", *sys.argv],
            env={
                **os.environ,
                "RANK": str(node * world + rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(nodes * world),
                "LOCAL_WORLD_SIZE": str(world),
                "GROUP_RANK": str(node),
            },
        )
        for rank in range(world)
    ]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())
