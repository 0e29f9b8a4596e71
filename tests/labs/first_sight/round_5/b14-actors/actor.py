import time

import numpy as np

from weights import SharedWeights

OBS, ACT, HID = 8, 4, 32
SHAPES = [(HID, OBS), (HID,), (ACT, HID), (ACT,)]


class ReachEnv:
    """Move a point in 8 dimensions towards the origin by four thrusters."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.thrust = self.rng.normal(size=(ACT, OBS)).astype(np.float32) * 0.3
        self.reset()

    def reset(self):
        self.pos = self.rng.normal(size=OBS).astype(np.float32)
        self.t = 0
        return self.pos

    def step(self, a):
        old = np.linalg.norm(self.pos)
        self.pos = (self.pos + self.thrust[a] * 0.5).astype(np.float32)
        self.t += 1
        return self.pos, float(old - np.linalg.norm(self.pos)), self.t >= 20


def unpack(flat):
    out, at = [], 0
    for s in SHAPES:
        n = int(np.prod(s))
        out.append(flat[at:at + n].reshape(s))
        at += n
    return out


def run_actor(name, size, queue, seed):
    shared = SharedWeights(size, name)
    env = ReachEnv(seed)
    rng = np.random.default_rng(seed + 1)
    seen, params = 0, None
    while True:
        flat, seen = shared.read(seen)
        if flat is not None:
            params = unpack(flat)
        if params is None:
            time.sleep(0.05)
            continue
        w1, b1, w2, b2 = params
        obs, done, episode = env.reset(), False, []
        while not done:
            logits = w2 @ np.tanh(w1 @ obs + b1) + b2
            p = np.exp(logits - logits.max())
            a = int(rng.choice(ACT, p=p / p.sum()))
            nxt, r, done = env.step(a)
            episode.append((obs, a, r))
            obs = nxt
            time.sleep(0.004)
        queue.put(episode)
