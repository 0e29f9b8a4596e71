import subprocess
import numpy as np


def decode(path, w=32, h=24):
    """Decode a clip to a float array [frames, h, w]."""
    p = subprocess.Popen(["./vdec", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    raw = p.stdout.read()
    err = p.stderr.read().decode()
    if p.wait() != 0:
        raise RuntimeError(err)
    a = np.frombuffer(raw, np.uint8)
    return a.reshape(-1, h, w).astype("float32") / 255
