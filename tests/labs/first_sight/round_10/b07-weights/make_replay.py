import os
import sys

import numpy as np

folder, count = sys.argv[1], int(sys.argv[2])
os.makedirs(folder, exist_ok=True)
rng = np.random.default_rng(0)
for i in range(count):
    np.save(os.path.join(folder, f"traj-{i:05d}.npy"), rng.normal(size=(64, 33)).astype("float32"))
print(f"{count} trajectories in {folder}")
