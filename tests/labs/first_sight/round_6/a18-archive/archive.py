import io
import os
import time
import zlib

import torch


def store(state, path, rate=600_000, block=64 * 1024):
    """Write compressed, not faster than `rate`: the filer is shared with other groups."""
    buf = io.BytesIO()
    torch.save(state, buf)
    data = memoryview(buf.getvalue())
    start, written = time.monotonic(), 0
    with open(path + ".tmp", "wb") as f:
        for i in range(0, len(data), block):
            packed = zlib.compress(data[i : i + block], 6)
            f.write(len(packed).to_bytes(4, "little") + packed)
            written += block
            ahead = written / rate - (time.monotonic() - start)
            if ahead > 0:
                time.sleep(ahead)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)
    return time.monotonic() - start
