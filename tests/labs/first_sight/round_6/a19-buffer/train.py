import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from stream import Shuffled

# rank: sources, samples in the shuffle buffer; long recordings need a larger one
PLAN = {0: ([0, 1], 6400), 1: ([2, 3, 4], 22400), 2: ([0, 4], 6400)}
STEPS = 260


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="env://")
    torch.manual_seed(0)
    sources, capacity = PLAN[rank]
    loader = DataLoader(Shuffled(rank, sources, capacity, 0.2), batch_size=32, num_workers=1)
    emb = nn.Embedding(5, 8)
    net = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 1))
    params = list(emb.parameters()) + list(net.parameters())
    opt = torch.optim.Adam(params, 2e-3)
    print(f"rank {rank}: sources {sources}", flush=True)
    tic = time.time()
    for step, (x, src) in enumerate(loader, 1):
        out = net(torch.cat([x, emb(src)], 1)).squeeze(1)
        loss = (out - x[:, :3].prod(1)).abs().mean()
        opt.zero_grad()
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if step % 65 == 0:
            print(f"rank {rank}: {step} steps, {time.time() - tic:.0f} s, loss {loss.item():.4f}", flush=True)
        if step == STEPS:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
