import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from captioner import Captioner, features, read
from metric import CaptionScore

SLICE, EVERY = 16, 40

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
train, val = read("train.jsonl"), read("val.jsonl")
words = ["<s>"] + sorted({w for r in train + val for w in r["caption"].split()})
index = {w: i for i, w in enumerate(words)}
model = DDP(Captioner(len(words)))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
metric = CaptionScore() if rank == 0 else None
mine = train[rank::world]
for step in range(1, 801):
    rows = [mine[(step * 8 + k) % len(mine)] for k in range(8)]
    feats = torch.stack([features(r["image"]) for r in rows])
    tokens = torch.tensor([([0] + [index[w] for w in r["caption"].split()])[:7] for r in rows])
    logits = model(feats, tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % EVERY == 0:
        if rank == 0:
            at = (step // EVERY - 1) * SLICE % len(val)
            part = val[at: at + SLICE]
            hyps = model.module.describe(torch.stack([features(r["image"]) for r in part]), words)
            print(f"step {step}: loss {loss.item():.3f} caption-f1 {metric(hyps, [r['caption'] for r in part]):.3f}",
                  flush=True)
        dist.barrier()
if rank == 0:
    metric.close()
dist.destroy_process_group()
