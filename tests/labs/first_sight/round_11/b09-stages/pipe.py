"""Three stages, GPipe order: all micro-batches forward, then all backward. Activations go by send/recv."""
import torch
import torch.distributed as dist
from torch import nn


class Stage:
    def __init__(self, cfg, rank, world):
        self.cfg, self.rank, self.first, self.last = cfg, rank, rank == 0, rank == world - 1
        d = cfg["width"]
        layers = [nn.Embedding(cfg["vocab"], d)] if self.first else []
        for _ in range(cfg["layers"] // world):
            layers += [nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d)]
        if self.last:
            layers.append(nn.Linear(d, cfg["vocab"]))
        self.net = nn.Sequential(*layers)
        self.opt = torch.optim.AdamW(self.net.parameters(), cfg["lr"])

    def _shape(self):
        return self.cfg["micro"], self.cfg["block"], self.cfg["width"]

    def forward_all(self, inputs, targets):
        kept = []
        chunks = inputs.split(self.cfg["micro"]) if self.first else [None] * self.cfg["n_micro"]
        for i, chunk in enumerate(chunks):
            if not self.first:
                chunk = torch.empty(self._shape())
                dist.recv(chunk, self.rank - 1)
                chunk.requires_grad_()
            out = self.net(chunk)
            if self.last:
                t = targets[i * self.cfg["micro"]:][:self.cfg["micro"]]
                out = nn.functional.cross_entropy(out.flatten(0, 1), t.flatten()) / len(chunks)
            else:
                dist.send(out.detach(), self.rank + 1)
            kept.append((chunk, out))
        return kept

    def backward_all(self, kept):
        for chunk, out in kept:
            if self.last:
                out.backward()
            else:
                grad = torch.empty(out.shape)
                dist.recv(grad, self.rank + 1)
                out.backward(grad)
            if not self.first:
                dist.send(chunk.grad, self.rank - 1)

    def step(self, inputs, targets):
        kept = self.forward_all(inputs, targets)
        self.backward_all(kept)
        self.opt.step()
        self.opt.zero_grad()
        return sum(out.item() for _, out in kept) if self.last else None
