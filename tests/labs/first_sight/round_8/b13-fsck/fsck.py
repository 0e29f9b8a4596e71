"""fsck.py FOLDER: reads every shard of every checkpoint and lists what is in it."""
import glob
import os
import sys

import torch

bad = 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "step_*", "shard_*.pt"))):
    state = torch.load(path, weights_only=True)
    for name, t in state.items():
        ok = bool(torch.isfinite(t.float()).all())
        bad += not ok
        print(f"{os.path.relpath(path, sys.argv[1])}: {name:40s} {str(t.dtype):15s} {str(tuple(t.shape)):20s} "
              f"absmax={t.abs().max():.5f} {'ok' if ok else 'BAD'}")
sys.exit(1 if bad else 0)
