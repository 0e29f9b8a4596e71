import io
import os
import time

import torch


def write_limited(path, blob, kib_per_s, block=64):
    """Written in blocks with fsync, no faster than the archive takes it."""
    begun, done = time.time(), 0
    with open(path + ".part", "wb") as f:
        while done < len(blob):
            f.write(blob[done:done + block * 1024])
            f.flush()
            os.fsync(f.fileno())
            done += block * 1024
            ahead = done / 1024 / kib_per_s - (time.time() - begun)
            if ahead > 0:
                time.sleep(ahead)
    os.replace(path + ".part", path)


def save_shard(folder, rank, state, kib_per_s):
    buf = io.BytesIO()
    torch.save(state, buf)
    write_limited(os.path.join(folder, f"rank{rank}.pt"), buf.getvalue(), kib_per_s)
