import io
import os
import sys
import tarfile

import numpy as np

root = sys.argv[1]
rng = np.random.default_rng(0)
with tarfile.open(os.path.join(root, "rows.tar"), "w") as tar:
    for i in range(330):
        raw = io.BytesIO()
        np.save(raw, rng.standard_normal((64, 20)).astype("float32"))
        info = tarfile.TarInfo(f"rows-{i:04d}.npy")
        info.size = len(raw.getvalue())
        tar.addfile(info, io.BytesIO(raw.getvalue()))
os.makedirs(os.path.join(root, "node0"))
with tarfile.open(os.path.join(root, "rows.tar")) as tar:
    for m in tar:
        with open(os.path.join(root, "node0", m.name), "wb") as f:
            f.write(tar.extractfile(m).read())
