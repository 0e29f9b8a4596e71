"""Data-parallel training on Ray actors, gloo between them."""
import os
import socket
import time

os.environ["RAY_DEDUP_LOGS"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
import ray
import torch
import torch.distributed as dist
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 4))


@ray.remote(num_cpus=1)
def score(state, seed):
    """Accuracy of a snapshot on the held-out set."""
    torch.set_num_threads(1)
    model = make_model()
    model.load_state_dict(state)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(512, 24, generator=g)
    y = x[:, :4].argmax(1)
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def free_address(self):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        return "127.0.0.1", port

    def setup(self, addr, port):
        os.environ.update(MASTER_ADDR=addr, MASTER_PORT=str(port), RANK=str(self.rank),
                          WORLD_SIZE=str(self.world), LOCAL_RANK=str(self.rank))
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.model = nn.parallel.DistributedDataParallel(make_model())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        return os.getpid()

    def fit(self, steps, eval_every):
        g = torch.Generator().manual_seed(100 + self.rank)
        for step in range(1, steps + 1):
            x = torch.randn(32, 24, generator=g)
            y = x[:, :4].argmax(1)
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            time.sleep(0.25)
            if step % 15 == 0:
                print(f"rank {self.rank} step {step}/{steps} loss {loss.item():.4f}", flush=True)
            if self.rank == 0 and step % eval_every == 0:
                state = {k: v.clone() for k, v in self.model.module.state_dict().items()}
                acc = ray.get(score.remote(state, 7))
                print(f"eval @ {step}: accuracy {acc:.3f}", flush=True)
        dist.destroy_process_group()
        return loss.item()


def main():
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=120 * 2**20,
             logging_level="warning")
    workers = [Worker.remote(r, 2) for r in range(2)]
    addr, port = ray.get(workers[0].free_address.remote())
    ray.get([w.setup.remote(addr, port) for w in workers])
    losses = ray.get([w.fit.remote(2000, 70) for w in workers])
    print("done", losses)


if __name__ == "__main__":
    main()
