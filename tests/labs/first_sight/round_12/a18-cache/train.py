import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from packing import ensure


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(512, 96)
        self.rnn = nn.GRU(96, 128, batch_first=True)
        self.out = nn.Linear(128, 512)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = torch.tensor(ensure(os.environ["PACKED"]), dtype=torch.long)
    torch.manual_seed(0)
    model = DDP(Model())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 201):
        x = rows[torch.randint(0, len(rows), (6,), generator=g)]
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"rank {rank}: step {step}, loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
