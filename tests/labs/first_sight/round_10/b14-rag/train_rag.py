import argparse
import atexit
import os
import subprocess
import sys
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import questions
from retrieve import Retriever


def start_index(folder):
    port_file = os.path.join(folder, "index.port")
    if os.path.exists(port_file):
        os.unlink(port_file)
    proc = subprocess.Popen([sys.executable, "index_server.py", port_file])
    atexit.register(proc.terminate)
    while not (os.path.exists(port_file) and open(port_file).read().endswith("\n")):
        time.sleep(0.2)
    return int(open(port_file).read())


def features(hits, size=128):
    v = torch.zeros(size)
    for h in hits:
        for w in h["text"].split():
            v[zlib.crc32(w.encode()) % size] += 1
    return v / v.norm().clamp(min=1e-6)


class Reader(nn.Module):
    def __init__(self, size=128, dim=384):
        super().__init__()
        self.q = nn.Embedding(1000, dim)
        self.p = nn.Linear(size, dim)
        self.body = nn.Sequential(*[nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(5)])
        self.out = nn.Linear(dim, size)

    def forward(self, q, p):
        h = self.q(q) + self.p(p)
        return self.out(h + self.body(h))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--work", default="work")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(args.work, exist_ok=True)
    port = torch.tensor([start_index(args.work) if rank == 0 else 0])
    dist.broadcast(port, 0)
    retriever = Retriever(int(port))
    torch.manual_seed(0)
    model = DDP(Reader())
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    ema = None
    for step in range(1, args.steps + 1):
        qs, ps = [], []
        for i in range(6):
            seed = step * 64 + rank * 8 + i
            qs.append(seed % 1000)
            ps.append(features(retriever(seed, questions.language(step, rank, i))))
        q, p = torch.tensor(qs), torch.stack(ps)
        loss = F.mse_loss(model(q, p), p.roll(1, 1)) * 128
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if step % 20 == 0:
            print(f"[{rank}] it {step:>5} | loss(ema) {ema:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
