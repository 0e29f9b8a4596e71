import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from decode import evaluate
from model import Seq2Seq

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(11)
net = Seq2Seq()
ddp = DDP(net)
opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
g = torch.Generator().manual_seed(rank)
held = [(torch.randint(2, 800, (1, 20), generator=g), torch.randint(2, 800, (20,), generator=g).tolist())
        for _ in range(160)]
for epoch in range(2):
    for it in range(60):
        src = torch.randint(2, 800, (8, 20), generator=g)
        tgt = src.flip(1)
        loss = nn.functional.cross_entropy(ddp(src, tgt).flatten(0, 1), tgt.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"epoch {epoch} train loss {loss.item():.3f}", flush=True)
    if epoch == 1:
        score = torch.zeros(1)
        if rank == 0:
            score[0] = evaluate(net, held, pause=0.3)
        dist.broadcast(score, 0)
        if score.item() < 0:
            break
if rank == 0:
    print(f"overlap {score.item():.4f}", flush=True)
dist.barrier()
dist.destroy_process_group()
