"""Context parallel training: every process has a slice of the sequence, keys and values go round the ring."""
import math
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

DIM, HEADS, WORLD = 64, 4, 3
STAGES = [(0, 192), (30, 768), (400, 1536)]     # from which step on, sequence length
GATHER_LIMIT = 256                              # below that all keys are gathered at once


def rotate(t):
    """Hand t to the next process and take that of the one before."""
    rank = dist.get_rank()
    t = t.contiguous()
    out = torch.empty_like(t)
    dist.send(t, (rank + 1) % WORLD)
    dist.recv(out, (rank - 1) % WORLD)
    return out


class RingAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def heads(self, t):
        return t.view(t.shape[0], HEADS, -1).transpose(0, 1)

    def forward(self, x, total):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if total <= GATHER_LIMIT:
            kv = torch.cat([k, v], dim=-1).detach()
            parts = [torch.empty_like(kv) for _ in range(WORLD)]
            dist.all_gather(parts, kv)
            parts[dist.get_rank()] = torch.cat([k, v], dim=-1)
            k, v = torch.cat(parts).chunk(2, dim=-1)
            return self.out(self.block(self.heads(q), self.heads(k), self.heads(v)))
        mixed = 0
        block = torch.cat([k, v], dim=-1)
        for hop in range(WORLD):
            bk, bv = block.chunk(2, dim=-1)
            mixed = mixed + self.block(self.heads(q), self.heads(bk), self.heads(bv)) / WORLD
            if hop < WORLD - 1:
                block = rotate(block.detach())
        return self.out(mixed)

    def block(self, q, k, v):
        w = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1)
        return (w @ v).transpose(0, 1).reshape(-1, DIM)


def length_at(step):
    return [n for s, n in STAGES if s <= step][-1]


def worker(rank, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    embed, attn, head = nn.Embedding(300, DIM), RingAttention(), nn.Linear(DIM, 300)
    params = [*embed.parameters(), *attn.parameters(), *head.parameters()]
    opt = torch.optim.Adam(params, lr=1e-3)
    gen = torch.Generator().manual_seed(5)
    t0 = time.time()
    for step in range(1000):
        total = length_at(step)
        ids = torch.randint(0, 300, (total + 1,), generator=gen)
        time.sleep(0.2)
        n = total // WORLD
        x, y = ids[rank * n:(rank + 1) * n], ids[rank * n + 1:(rank + 1) * n + 1]
        loss = nn.functional.cross_entropy(head(attn(embed(x), total)), y)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        at = 0
        for p in params:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p) / WORLD)
            at += p.numel()
        opt.step()
        if step % 10 == 0:
            print(f"[{rank}] {time.time() - t0:7.1f}s step={step} seq={total} loss={loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD)
