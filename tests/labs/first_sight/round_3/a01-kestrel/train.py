import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from fetch import Fetcher

PER_STEP = 4


class CharModel(nn.Module):
    def __init__(self, vocab=64, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    port = [None]
    if rank == 0:
        blobd = subprocess.Popen([sys.executable, "blobd.py"], stdout=subprocess.PIPE, text=True)
        port[0] = int(blobd.stdout.readline())
    dist.broadcast_object_list(port, src=0)

    fetcher = Fetcher(port[0])
    model = DDP(CharModel())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start = 5000 * rank
    began = time.time()
    for step in range(900):
        first = start + step * PER_STEP
        blobs = fetcher.batch(range(first, first + PER_STEP))
        x = torch.stack([torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in blobs]).long()
        logits = model(x[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.4)
        if rank == 0 and step % 5 == 0:
            print(f"[{time.time() - began:7.1f}s] it {step} | nll {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
