import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from state_io import State


class Reader:
    def __init__(self, rank, world):
        self.rank, self.world, self.position = rank, world, 0

    def seek(self, position):
        self.position = position

    def next(self, n):
        g = torch.Generator().manual_seed(self.position * self.world + self.rank)
        self.position += n
        x = torch.randn(n, 3, 16, 16, generator=g)
        y = (x.mean((1, 2, 3)) * 40).long().clamp(-4, 5) + 4
        return x, y


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.GELU(), nn.MaxPool2d(2),
                                 nn.Conv2d(24, 48, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(2),
                                 nn.Flatten(), nn.Linear(192, 10))

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def validate(model, rank, world):
    g = torch.Generator().manual_seed(77)
    x = torch.randn(64, 3, 16, 16, generator=g)[rank::world]
    y = (x.mean((1, 2, 3)) * 40).long().clamp(-4, 5) + 4
    hit = (model(x).argmax(1) == y).float()
    out = [torch.empty_like(hit) for _ in range(world)]
    dist.all_gather(out, hit)
    return torch.cat(out).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--state", required=True)
    ap.add_argument("--steps", type=int, default=1200)
    ap.add_argument("--eval-every", type=int, default=30)
    args = ap.parse_args()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    meet = "file://" + os.path.abspath(os.path.join(args.state, f"meet-{attempt}"))
    dist.init_process_group("gloo", init_method=meet, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = ConvNet()
    model = DDP(net)
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    reader, state = Reader(rank, world), State(args.state, rank)
    first = state.resume(net, opt, reader)
    print(f"[rank {rank}] attempt {attempt} goes on after step {first}", flush=True)
    for step in range(first + 1, args.steps + 1):
        x, y = reader.next(32)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.08)
        state.progress(step)
        state.maybe_save(step, net, opt, reader)
        if step % args.eval_every == 0:
            acc = validate(net, rank, world)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f} val_acc {acc:.3f}", file=sys.stderr, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
