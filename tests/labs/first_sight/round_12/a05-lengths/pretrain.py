import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import buckets

STAGES = [(32, 120), (64, 120), (128, 200)]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.att(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.out = nn.Linear(d, 256)

    def forward(self, x):
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), 1)
        h = self.emb(x)
        for b in self.blocks:
            h = b(h, mask)
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(rank)
    for length, steps in STAGES:
        rows = buckets.load(length)
        t = time.time()
        for step in range(steps):
            x = rows[torch.randint(0, len(rows), (4,), generator=g)]
            logits = model(x[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % 20 == 0 and rank == 0:
                print(f"len={length} iter={step}/{steps} lm loss: {loss.item():.4E} | "
                      f"elapsed: {time.time() - t:.1f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "cache/final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
