import multiprocessing as mp

import numpy as np

from workers import serve


class RolloutPool:
    def __init__(self, count=2):
        ctx = mp.get_context("spawn")
        self.requests, self.results = ctx.Queue(), ctx.Queue()
        self.weights = ctx.Array("f", 512)
        self.procs = [ctx.Process(target=serve, args=(i, self.requests, self.results, self.weights),
                                  name=f"rollout-{i}", daemon=True) for i in range(count)]
        for p in self.procs:
            p.start()

    def publish(self, bias):
        with self.weights.get_lock():
            np.frombuffer(self.weights.get_obj(), dtype="float32")[:] = bias

    def collect(self, version, items, n):
        for i, item in enumerate(items):
            self.requests.put({"id": i, "item": item, "n": n, "version": version})
        done = {}
        while len(done) < len(items):
            r = self.results.get()
            done[r["id"]] = r
        return [done[i] for i in range(len(items))]

    def close(self):
        for _ in self.procs:
            self.requests.put(None)
        for p in self.procs:
            p.join(5)
