import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Autoencoder(nn.Module):
    def __init__(self, width=128, depth=3):
        super().__init__()
        dims = [width] + [width // 2 ** (i + 1) for i in range(depth)]
        enc = [m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.SiLU())]
        dec = [m for a, b in zip(dims[::-1], dims[::-1][1:]) for m in (nn.Linear(a, b), nn.SiLU())]
        self.net = nn.Sequential(*enc, *dec[:-1])

    def forward(self, x, keep):
        return ((self.net(x * keep) - x) ** 2 * (1 - keep)).mean()


class Run:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.step = 0
        torch.manual_seed(42)
        self.model = DistributedDataParallel(Autoencoder())
        self.opt = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.gen = torch.Generator().manual_seed(100 + self.rank)
        self.mix = torch.randn(8, 128, generator=torch.Generator().manual_seed(1))
        self.log = open(args.log, "w", buffering=1)
        signal.signal(signal.SIGUSR1, self.on_usr1)

    def on_usr1(self, signum, frame):
        self.log.write(f"signal {signum}, saving\n")
        self.save()

    def save(self):
        """Each rank writes its generator state; rank 0 the model and the optimizer too."""
        state = {"step": self.step, "gen": self.gen.get_state()}
        if self.rank == 0:
            state.update(model=self.model.module.state_dict(), opt=self.opt.state_dict())
        dist.barrier()
        path = os.path.join(self.args.ckpt, f"rank{self.rank}.pt")
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
        dist.barrier()
        self.log.write(f"saved at {self.step}\n")

    def train(self):
        while self.step < self.args.steps:
            z = torch.randn(32, 8, generator=self.gen)
            x = z @ self.mix
            keep = (torch.rand(x.shape, generator=self.gen) > 0.3).float()
            loss = self.model(x, keep)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % 20 == 0:
                self.log.write(f"step={self.step} loss={loss.item():.4f}\n")
            if self.step % 1000 == 0:
                self.save()
            time.sleep(self.args.pause)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--log", required=True)
    ap.add_argument("--ckpt", default="ckpt")
    ap.add_argument("--steps", type=int, default=6000)
    ap.add_argument("--pause", type=float, default=0.05)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Run(args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
