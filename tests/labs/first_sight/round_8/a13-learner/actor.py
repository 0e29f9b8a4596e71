import time

import numpy as np


def play(env, weights, queue, seed):
    """Plays episodes with a frozen policy and sends them to the learner."""
    rng = np.random.default_rng(seed)
    while True:
        obs = rng.standard_normal((env["horizon"], env["obs"])).astype(np.float32)
        act = (obs[:, :weights.shape[0]] @ weights).argmax(1)
        rew = (obs[:, 0] > 0) == (act == 0)
        time.sleep(env["delay"])
        queue.put((obs, act, rew.astype(np.float32)))
