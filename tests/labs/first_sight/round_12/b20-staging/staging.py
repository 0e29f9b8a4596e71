import os
import time

RATE = {0: 400, 1: 60, 2: 400}  # KiB/s, measured


def stage(rank):
    """Copies the shard of this rank to local scratch and returns the path of the copy."""
    scratch = os.environ["SCRATCH"]
    src = os.path.join(scratch, "store", f"shard{rank}.txt")
    dst = os.path.join(scratch, f"local{rank}.txt")
    block = 64 * 1024
    with open(src, "rb") as a, open(dst, "wb") as b:
        while chunk := a.read(block):
            b.write(chunk)
            time.sleep(len(chunk) / 1024 / RATE[rank])
    return dst
