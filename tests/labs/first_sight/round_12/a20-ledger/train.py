import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import ledger

WORLD = 3


def worker(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="31720", RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if rank == 0:
        ledger.create(path)
    dist.barrier()
    metrics = ledger.Metrics(path, "run-17", rank)
    leaders = ledger.Leaders(path, "run-17") if rank == 0 else None
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(120, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 1))
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(rank)
    vx = torch.randn(256, 120, generator=torch.Generator().manual_seed(99))
    for step in range(1, 1201):
        x = torch.randn(32, 120, generator=g)
        loss = (net(x) - x[:, :1] * x[:, 1:2]).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD
        opt.step()
        if step % 20 == 0:
            metrics.record(step, loss.item())
        if leaders and step % 100 == 10:
            with torch.no_grad():
                score = (net(vx) - vx[:, :1] * vx[:, 1:2]).square().mean().item()
            print(f"step {step:5d}  validation {score:.4f}", flush=True)
            if step > 250 and (leaders.best() is None or score < leaders.best()):
                leaders.enter(step, score)
    if leaders:
        leaders.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ledger-") as tmp:
        mp.spawn(worker, args=(os.path.join(tmp, "ledger.db"),), nprocs=WORLD)
