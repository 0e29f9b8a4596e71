"""Stands for the fleet: drops a file of new transitions into inbox/ every PERIOD seconds."""
import os
import sys
import time

import numpy as np

inbox, period, rounds = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(9)
os.makedirs(inbox, exist_ok=True)
for n in range(rounds):
    time.sleep(period)
    obs = rng.normal(size=(4000, 16)).astype("float32")
    act = rng.integers(0, 4, 4000)
    rew = (obs[np.arange(4000), act] > 0).astype("float32")
    tmp = os.path.join(inbox, f".{n:04d}.npz")
    np.savez(tmp, obs=obs, act=act, rew=rew)
    os.replace(tmp, os.path.join(inbox, f"{n:04d}.npz"))
