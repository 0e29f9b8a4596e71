import os
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.nn.functional as F
from tqdm import tqdm

import ps

STEPS = 3000


class Trainer:
    def __init__(self, rank):
        self.name = f"trainer{rank}"
        self.lock = threading.Lock()
        self.gen = torch.Generator().manual_seed(10 + rank)
        self.target = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
        self.model = ps.build()
        self.horizon = 16
        self.losses = []

    def recent_loss(self):
        with self.lock:
            recent = self.losses[-20:]
            return sum(recent) / max(1, len(recent))

    def set_horizon(self, n):
        with self.lock:
            self.horizon = n

    def load(self, weights):
        with torch.no_grad():
            for p, w in zip(self.model.parameters(), weights):
                p.copy_(w)

    def rollout(self):
        states = []
        for _ in range(self.horizon):
            states.append(torch.randn(24, generator=self.gen))
            time.sleep(0.006)
        states = torch.stack(states)
        return states, (states @ self.target).argmax(1)

    def step(self):
        with self.lock:
            states, best = self.rollout()
            loss = F.cross_entropy(self.model(states), best)
            grads = torch.autograd.grad(loss, list(self.model.parameters()))
            self.losses.append(loss.item())
            self.load(rpc.rpc_sync("ps", ps.push, args=(list(grads),), timeout=0))
        return loss.item()

    def run(self, show):
        self.load(rpc.rpc_sync("ps", ps.join, args=(self.name, rpc.RRef(self))))
        bar = tqdm(range(STEPS), desc=self.name, disable=not show, mininterval=2)
        for _ in bar:
            bar.set_postfix(loss=f"{self.step():.3f}", horizon=self.horizon, refresh=False)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, init_method="env://")
    if rank == 0:
        ps.start()
    rpc.init_rpc("ps" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world, rpc_backend_options=options)
    if rank > 0:
        Trainer(rank).run(show=rank == 1)
    rpc.shutdown(timeout=0)


if __name__ == "__main__":
    main()
