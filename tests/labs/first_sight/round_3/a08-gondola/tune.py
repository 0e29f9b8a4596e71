import os
import socket
import time

import ray
import torch
import torch.distributed as dist
from torch import nn


def build():
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))


@ray.remote(num_cpus=0, resources={"scorer": 1})
class Scorer:
    """Holds the validation set, scores weights on it."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.x, self.y = torch.randn(256, 20, generator=g), torch.randint(0, 4, (256,), generator=g)

    def score(self, weights):
        net = build()
        net.load_state_dict(weights)
        return (net(self.x).argmax(-1) == self.y).float().mean().item()


@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank, world, port):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.set_num_threads(1)
        self.rank = rank
        self.scorers = {}

    def validate(self, net, fold):
        if fold not in self.scorers:
            self.scorers[fold] = Scorer.remote(fold)
        return ray.get(self.scorers[fold].score.remote(net.state_dict()))

    def fit(self, steps):
        dist.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(build())
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        for step in range(1, steps + 1):
            x = torch.randn(8, 20)
            loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(-1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.15)
            if self.rank == 0 and step % 40 == 0:
                fold = (step // 80) % 5
                print(f"step {step}: loss {loss.item():.3f} fold {fold} acc {self.validate(net.module, fold):.3f}")
        dist.destroy_process_group()
        return loss.item()


if __name__ == "__main__":
    ray.init(num_cpus=2, resources={"scorer": 1}, include_dashboard=False)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = [Worker.remote(rank, 2, port) for rank in range(2)]
    print(ray.get([w.fit.remote(4000) for w in workers]))
