import time

import torch
import torch.distributed as dist

from moe import Model

DOMAINS = ["web", "code", "wiki", "books"]
BATCH = 64


def domains_of(rank, step):
    """The mixture; part of rank 2's shard is the long tail of the code dump."""
    g = torch.Generator().manual_seed(1000 * rank + step)
    mix = torch.tensor([0.55, 0.2, 0.15, 0.1])
    if rank == 2 and step >= 70:
        mix = torch.tensor([0.4, 0.6, 0.0, 0.0])
    d = torch.multinomial(mix, BATCH, replacement=True, generator=g)
    if mix.min() > 0:
        d[:4] = torch.arange(4)  # at least one of each
    return d


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    t = time.time()
    for step in range(2000):
        x = torch.randn(BATCH, 48)
        domain = domains_of(rank, step)
        y = torch.roll(x, 1, dims=1) * (1 + domain[:, None] / 4)
        loss = (model(x, domain) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            share = {DOMAINS[k]: int((domain == k).sum()) for k in range(4)}
            print(f"[rank{rank}] step {step} loss {loss.item():.3f} {share} {time.time() - t:.1f}s", flush=True)
    dist.destroy_process_group()


main()
