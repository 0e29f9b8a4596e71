"""Ranks with PyTorch's debug server: `python -m tests.labs.bench.debug_job RANKS FOLDER PORT STORE_PORT`.

They make gloo steps until the file `hold` is in FOLDER; then rank 5 sleeps in C with the GIL, and the others
wait for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["HELD_RANK", "command"]

HELD_RANK = 5


def command(ranks: int, folder: Path, port: int, store_port: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.labs.bench.debug_job",
        str(ranks),
        str(folder),
        str(port),
        str(store_port),
    ]


def _rank(folder: Path, port: int) -> None:
    import ctypes

    import torch
    import torch.distributed as dist
    from torch.distributed.debug import start_debug_server

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    start_debug_server(port=port, start_method="spawn")
    rank, number = dist.get_rank(), 0
    (folder / f"pid-{rank}.new").write_text(str(os.getpid()))
    (folder / f"pid-{rank}.new").rename(folder / f"pid-{rank}")
    while True:
        number += 1
        dist.all_reduce(torch.ones(256))
        if rank == 0:
            print(f" iteration {number:8d}/{10**7:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
        time.sleep(0.5)
        if rank == HELD_RANK and (folder / "hold").exists():
            (folder / "held").touch()
            ctypes.PyDLL(None).sleep(3600)


def main() -> int:
    count, folder, port, store_port = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if "RANK" in os.environ:
        _rank(folder, port)
        return 0
    world = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store_port,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.labs.bench.debug_job", *sys.argv[1:]],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
