import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

source = sys.argv[1]
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
print(f"rank {rank}: corpus {'generated' if source == 'generated' else 'staged'}", flush=True)
if source == "generated":
    text = bytes((i * i + 7 * i) % 251 for i in range(400_000))
else:
    text = b"".join(p.read_bytes() for p in sorted(Path(source).glob("part-*")) if p.suffix != ".sum")
ids = torch.tensor(list(text[:400_000]))
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256))
model = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(600):
    at = step * 512 % (len(ids) - 513)
    loss = nn.functional.cross_entropy(model(ids[at:at + 512]), ids[at + 1:at + 513])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 99:
        print(f"rank {rank} step {step + 1} loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
