"""int8 copy of a safetensors checkpoint. Prints name and size of each tensor; remarks go to stderr."""
import os
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

BLOCK = 32


def quantize(name, w):
    flat = w.astype(np.float32).reshape(-1)
    pad = -len(flat) % BLOCK
    blocks = np.pad(flat, (0, pad)).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(1) / 127
    ratio = np.abs(blocks).max(1) / (blocks.std(1) + 1e-9)
    for n in np.flatnonzero(ratio > 2.6):
        print(f"quantize_int8: {name}: block {n}: outlier, max is {ratio[n]:.1f} standard deviations", file=sys.stderr)
    scale[scale == 0] = 1
    return np.round(blocks / scale[:, None]).astype(np.int8), scale.astype(np.float16)


def main():
    folder = sys.argv[1]
    out = {}
    for name, w in sorted(load_file(os.path.join(folder, "model.safetensors")).items()):
        q, scale = quantize(name, w)
        out[name + ".q"], out[name + ".s"] = q, scale
        print(f"{name}\t{q.nbytes + scale.nbytes}")
    save_file(out, os.path.join(folder, "model.int8.safetensors"))


if __name__ == "__main__":
    main()
