import os, shutil, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from hardpool import merge_pool, pool_lock

N, DIM, BATCH, WARM_EPOCHS = 4096, 64, 32, 2
POOL = "runs/pool.json"


def say(msg):
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} r{dist.get_rank()} {msg}\n")
    sys.stdout.flush()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        shutil.rmtree("runs", ignore_errors=True)
        os.makedirs("runs")
    dist.barrier()
    g = torch.Generator().manual_seed(3)
    X = torch.randn(N, DIM, generator=g)
    Y = (X[:, :8] ** 2).argmax(1)
    ids = torch.arange(N)
    data = TensorDataset(ids, X, Y)
    torch.manual_seed(11)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(DIM, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    losses = {}

    def mine():
        """Fold this rank's losses into the shared pool and start a loader on it."""
        with pool_lock(POOL):
            pool = merge_pool(POOL, losses)
            w = torch.tensor([pool.get(i, 1.0) for i in range(N)]).clamp(min=1e-3)
            sampler = WeightedRandomSampler(w, 40 * BATCH, generator=torch.Generator().manual_seed(rank))
            loader = DataLoader(data, BATCH, sampler=sampler, num_workers=2, persistent_workers=True)
            return iter(loader)

    for epoch in range(60):
        if epoch < WARM_EPOCHS:
            sub = torch.utils.data.Subset(data, range(rank * 64 * BATCH, (rank + 1) * 64 * BATCH))
            it = iter(DataLoader(sub, BATCH))
        else:
            if rank != 0:
                dist.barrier()
            it = mine()
            if rank == 0:
                dist.barrier()
        total, n = 0.0, 0
        for idx, x, y in it:
            per = nn.functional.cross_entropy(net(x), y, reduction="none")
            for i, v in zip(idx.tolist(), per.tolist()):
                losses[i] = v
            loss = per.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, n = total + loss.item(), n + 1
            if n % 20 == 0:
                say(f"ep {epoch} it {n} loss {total / n:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
