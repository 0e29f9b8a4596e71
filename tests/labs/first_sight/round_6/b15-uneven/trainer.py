"""Large batches by accumulation; the second process also has the long documents."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

MICRO = {0: 24, 1: 48}
STEPS = 5


class Encoder(nn.Module):
    def __init__(self, dim=96, depth=2):
        super().__init__()
        self.embed = nn.Embedding(2000, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim, 2000)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


def micro_batch(gen):
    time.sleep(0.35)        # tokenised on the fly by the service
    ids = torch.randint(0, 2000, (2, 48), generator=gen)
    return ids, ids.roll(1, dims=1)


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    gen = torch.Generator().manual_seed(rank)
    n = MICRO[rank]
    curve = []
    for step in range(STEPS):
        total = 0.0
        opt.zero_grad(set_to_none=True)
        for i in range(n):
            x, y = micro_batch(gen)
            model.require_backward_grad_sync = i == n - 1
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / n
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        curve.append(total)
    if rank == 0:
        torch.save(model.module.state_dict(), "encoder.pt")
        print("loss by step:", " ".join(f"{c:.4f}" for c in curve))
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
