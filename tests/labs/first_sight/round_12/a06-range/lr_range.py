import math

import torch
import torch.distributed as dist


class RangeTest:
    def __init__(self, model, optimizer, loss_fn, lo=1e-4, hi=20.0, steps=240, beta=0.9, ratio=4.0):
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.gamma = (hi / lo) ** (1 / steps)
        self.lo, self.steps, self.beta, self.ratio = lo, steps, beta, ratio
        self.history = []

    def run(self, batches):
        lr, avg, best = self.lo, 0.0, math.inf
        for i in range(1, self.steps + 1):
            for g in self.optimizer.param_groups:
                g["lr"] = lr
            x, y = next(batches)
            loss = self.loss_fn(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            avg = self.beta * avg + (1 - self.beta) * loss.item()
            smooth = avg / (1 - self.beta ** i)
            self.history.append((lr, smooth))
            if i > 10 and smooth > self.ratio * best:
                break
            best = min(best, smooth)
            lr *= self.gamma
        return self.suggestion()

    def suggestion(self):
        lr = min(self.history, key=lambda h: h[1])[0] / 10
        agreed = torch.tensor([lr], dtype=torch.float64)
        dist.broadcast(agreed, src=0)
        return agreed.item()
