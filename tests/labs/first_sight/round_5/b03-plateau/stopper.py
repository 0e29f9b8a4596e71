import json
import math


class Stopper:
    """Early stopping for a group of ranks: rank 0 judges the validation loss, the others read its verdict
    from the shared store (cheaper than a broadcast of an object at every validation)."""

    def __init__(self, store, rank, patience=4, min_delta=0.002, save=None):
        self.store, self.rank, self.save = store, rank, save
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = math.inf, 0

    def _publish(self, step, **verdict):
        self.store.set(f"verdict/{step}", json.dumps(verdict))

    def judge(self, step, loss):
        if loss < self.best - self.min_delta:
            self.best, self.bad = loss, 0
            if self.save:
                self.save(step)
            self._publish(step, stop=False, best=True)
            return False
        self.bad += 1
        if self.bad >= self.patience:
            self._publish(step, stop=True, best=False)
            return True
        return False

    def follow(self, step):
        key = f"verdict/{step}"
        self.store.wait([key])
        return json.loads(self.store.get(key))["stop"]

    def __call__(self, step, loss):
        return self.judge(step, loss) if self.rank == 0 else self.follow(step)
