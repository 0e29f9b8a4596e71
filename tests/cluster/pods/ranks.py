"""A launcher and its ranks without torch: `python ranks.py wait|eat|end [ranks]`. What it does after FILE in
$GO appears."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def wait_for_the_word() -> None:
    go = Path(os.environ["GO"])
    while not go.exists():
        time.sleep(0.1)


def eat() -> None:
    """More memory than any limit of the tests, a bit at a time."""
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))
        time.sleep(0.05)


def main() -> int:
    what = sys.argv[1]
    if "RANK" in os.environ:
        print(f"rank {os.environ['RANK']} is up", flush=True)
        wait_for_the_word()
        if what == "eat" and os.environ["RANK"] == "1":
            eat()
        while what == "wait":
            time.sleep(1.0)
        return 0
    world = sys.argv[2] if len(sys.argv) > 2 else "2"
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, what],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": world,
                "LOCAL_WORLD_SIZE": world,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29500",
            },
        )
        for rank in range(int(world))
    ]
    codes = [rank.wait() for rank in ranks]
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main())
