"""Small sequence classifier, two ranks, curves go to the tracker that rank 0 starts."""
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from tracker import init_run

torch.set_num_threads(1)
STEPS, BATCH, EPOCHS = 40, 8, 12


class Reviews(Dataset):
    def __init__(self, run, n=STEPS * BATCH * 2):
        g = torch.Generator().manual_seed(3)
        self.lengths = torch.randint(20, 260, (n,), generator=g)
        self.run = run

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        n = int(self.lengths[i])
        if n > 200:
            self.run.log({"data/clipped": n - 200})
        g = torch.Generator().manual_seed(i)
        x = torch.randint(0, 500, (200,), generator=g)
        return x, int(x.float().mean() > 250)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(500, 64)
        self.body = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))])
        self.head = nn.Linear(64, 2)

    def forward(self, x):
        return self.head(self.body(self.emb(x)).mean(1))


def validate(model, epoch):
    model.eval()
    total = torch.zeros(1)
    with torch.no_grad():
        for i in range(60):
            g = torch.Generator().manual_seed(10_000 + i)
            x = torch.randint(0, 500, (48, 200), generator=g)
            y = (x.float().mean(1) > 250).long()
            total += nn.functional.cross_entropy(model(x), y)
    dist.all_reduce(total)
    model.train()
    return float(total) / 120


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    run = init_run("reviews", enabled=rank == 0)
    data = Reviews(run)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    net = Net()
    model = DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    t0 = time.time()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            row = {"train/loss": loss.item(), "epoch": epoch}
            run.log(row)
            if epoch >= 2:  # gradients are of interest once the warm-up is over
                for name, p in net.named_parameters():
                    run.log({"grad/" + name: float(p.grad.norm())})
            if rank == 0 and step % 20 == 0:
                print(f"[{time.time() - t0:7.1f}s] epoch {epoch} step {step:3d} loss {loss.item():.4f}", flush=True)
        run.flush()
        val = validate(net, epoch)
        if rank == 0:
            print(f"epoch {epoch}: val loss {val:.4f}", flush=True)
    run.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
