"""The arm's simulator runs in real time at 20 Hz, as the hardware does."""
import time

import numpy as np

HZ = 20
SECONDS = 32


def simulate(seed, weights, episodes):
    rng = np.random.default_rng(seed)
    while True:
        w = weights.get()
        if w is None:
            return
        q, dq = rng.normal(size=2), np.zeros(2)
        obs, act, rew = [], [], []
        tick = time.monotonic()
        for _ in range(HZ * SECONDS):
            o = np.concatenate([q, dq, np.sin(q)]).astype(np.float32)
            h = np.tanh(w["body.0.weight"] @ o + w["body.0.bias"])
            h = np.tanh(w["body.2.weight"] @ h + w["body.2.bias"])
            a = w["mean.weight"] @ h + w["mean.bias"] + 0.2 * rng.normal(size=2)
            dq = 0.98 * dq + a / HZ
            q = q + dq / HZ
            obs.append(o)
            act.append(a.astype(np.float32))
            rew.append(-float(q @ q))
            tick += 1 / HZ
            time.sleep(max(0.0, tick - time.monotonic()))
        ret = np.cumsum(rew[::-1])[::-1] / len(rew)
        episodes.put((np.stack(obs), np.stack(act), ret.astype(np.float32)))
