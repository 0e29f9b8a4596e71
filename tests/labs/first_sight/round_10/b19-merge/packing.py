"""Merged weights go out in parts, each packed hard and read back to be sure; the hub takes one in four seconds."""
import hashlib
import lzma
import os
import time

import numpy as np


def pack(model, folder, parts=16):
    os.makedirs(folder)
    tensors = {n: m.merged().detach().numpy() for n, m in model.named_modules() if hasattr(m, "merged")}
    flat = np.concatenate([t.ravel() for t in tensors.values()]).astype("float16")
    sums = []
    for i, piece in enumerate(np.array_split(flat, parts)):
        raw = piece.tobytes()
        packed = lzma.compress(raw, preset=9)
        path = os.path.join(folder, f"weights-{i:02d}.xz")
        with open(path, "wb") as f:
            f.write(packed)
            f.flush()
            os.fsync(f.fileno())
        with open(path, "rb") as f:
            assert lzma.decompress(f.read()) == raw
        sums.append(hashlib.sha256(packed).hexdigest())
        time.sleep(4)
    with open(os.path.join(folder, "SHA256SUMS"), "w") as f:
        f.writelines(f"{s}  weights-{i:02d}.xz\n" for i, s in enumerate(sums))
