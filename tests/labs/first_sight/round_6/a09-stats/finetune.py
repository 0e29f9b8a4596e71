import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from metriclog import MetricLog


class Tagger(nn.Module):
    def __init__(self, vocab=400, dim=160, tags=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 320, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(dim, tags)

    def forward(self, x):
        return self.head(self.enc(self.emb(x)))


def dataset(n=2048, length=32):
    g = torch.Generator().manual_seed(4)
    x = torch.randint(0, 400, (n, length), generator=g)
    return TensorDataset(x, (x + x.roll(1, 1)) % 12)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tagger())
    opt = torch.optim.AdamW(model.parameters(), 5e-4)
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    metrics = MetricLog("metrics.jsonl") if rank == 0 else None
    step = 0
    for epoch in range(12):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if metrics:
                watch = {n.replace("module.", ""): p.grad for n, p in model.named_parameters() if p.dim() == 2}
                metrics.add(step, loss=loss.item(), **watch)
        print(f"[{time.strftime('%X')}] rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
    if metrics:
        metrics.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
