import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import stats
from data import Pairs


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        stats.start("stats.jsonl")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 40)))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = DataLoader(Pairs(320, seed=rank), batch_size=16, shuffle=True, num_workers=2)
    for epoch in range(400):
        t = time.time()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.08)
            if rank == 0:
                stats.row(epoch=epoch, loss=loss.item())
        print(f"rank {rank} epoch {epoch} took {time.time() - t:.1f}s loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
