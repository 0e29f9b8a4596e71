import contextlib
import fcntl
import multiprocessing as mp
import os
import time

import numpy as np


@contextlib.contextmanager
def cache_lock(folder):
    f = open(os.path.join(folder, ".lock"), "w")
    fcntl.flock(f, fcntl.LOCK_EX)
    try:
        yield
    finally:
        f.close()


def keep_warm(folder, pause):
    """Reads the memory-mapped files over again, so that they stay in the page cache."""
    parent = os.getppid()
    while os.getppid() == parent:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".npy"):
                np.load(os.path.join(folder, name), mmap_mode="r").sum()
        time.sleep(pause)


def build(folder, shards=12, rows=4096, width=64):
    rng = np.random.default_rng(0)
    for i in range(shards):
        walk = rng.integers(-3, 4, (rows, width)).cumsum(1) % 256
        np.save(os.path.join(folder, f"part{i:02d}.npy"), walk.astype("int64"))


def load(folder):
    os.makedirs(folder, exist_ok=True)
    with cache_lock(folder):
        if not os.path.exists(os.path.join(folder, "complete")):
            build(folder)
            mp.get_context("fork").Process(target=keep_warm, args=(folder, 5), daemon=True, name="warm").start()
            open(os.path.join(folder, "complete"), "w").close()
        return [np.load(os.path.join(folder, n), mmap_mode="r")
                for n in sorted(os.listdir(folder)) if n.endswith(".npy")]
