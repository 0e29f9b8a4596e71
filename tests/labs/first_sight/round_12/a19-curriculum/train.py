import csv
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from schedule import shortest
from stream import Stream

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, vocab=300, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, 128, 5, padding=4)
        self.out = nn.Linear(128, vocab)

    def forward(self, x):
        h = self.conv(self.emb(x).transpose(1, 2))[..., : x.size(1)].relu()
        return self.out(h.transpose(1, 2))


model = DDP(Net())
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
stream = Stream(f"shards/{rank}.txt")
out = csv.writer(sys.stdout)
for step in range(1500):
    x = torch.tensor(stream.batch(8, shortest(step)))
    logits = model(x[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 and rank == 0:
        out.writerow([step, x.size(1), f"{loss.item():.4f}"])
        sys.stdout.flush()
dist.destroy_process_group()
