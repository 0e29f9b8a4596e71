import io
import os
import time

import torch


def put(state, path, bytes_per_s=None, block=1 << 16):
    """Write a shard; the cold tier is a shared appliance with a quota of bandwidth."""
    buf = io.BytesIO()
    torch.save(state, buf)
    view, at = buf.getbuffer(), 0
    with open(path, "wb") as f:
        while at < len(view):
            f.write(view[at:at + block])
            at += block
            if bytes_per_s:
                f.flush()
                os.fsync(f.fileno())
                time.sleep(block / bytes_per_s)
    return len(view)
