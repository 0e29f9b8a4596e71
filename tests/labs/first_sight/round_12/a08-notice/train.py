import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn

RUN = "run"


class Preemption:
    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, *_):
        self.asked = True


class Trainer:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.preemption = Preemption()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Conv1d(1, 32, 7, padding=3), nn.ReLU(), nn.Conv1d(32, 32, 7, padding=3), nn.ReLU(),
                                 nn.AdaptiveAvgPool1d(16), nn.Flatten(), nn.Linear(512, 10))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.gen = torch.Generator().manual_seed(self.rank)
        os.makedirs(RUN, exist_ok=True)
        with open(f"{RUN}/rank{self.rank}.pid", "w") as f:
            f.write(str(os.getpid()))

    def save(self, step):
        dist.barrier()
        torch.save({"step": step, "net": self.net.state_dict(), "opt": self.opt.state_dict()},
                   f"{RUN}/shard-{self.rank}.pt")
        dist.barrier()
        if self.rank == 0:
            with open(f"{RUN}/latest", "w") as f:
                f.write(str(step))

    def train_step(self):
        x = torch.randn(16, 1, 256, generator=self.gen)
        y = torch.randint(0, 10, (16,), generator=self.gen)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        flat = nn.utils.parameters_to_vector([p.grad for p in self.net.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / self.world, [p.grad for p in self.net.parameters()])
        self.opt.step()
        return loss.item()

    def fit(self, steps):
        t = time.time()
        for step in range(1, steps + 1):
            loss = self.train_step()
            if self.rank == 0:
                with open(f"{RUN}/progress", "w") as f:
                    f.write(f"{step}\n")
                if step % 50 == 0:
                    print(f"step {step}/{steps}  loss {loss:.4f}  {step / (time.time() - t):.1f} it/s", flush=True)
            if step % 500 == 0:
                self.save(step)
            if self.preemption.asked:
                print(f"step {step}: node goes away soon, saving", flush=True)
                self.save(step)
                break
        dist.destroy_process_group()


Trainer().fit(20000)
