import os
import signal
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import decode
from ring import Ring


class FM(nn.Module):
    def __init__(self, size=1000, k=16):
        super().__init__()
        self.w, self.v = nn.Embedding(size, 1), nn.Embedding(size, k)

    def forward(self, x):
        v = self.v(x)
        pair = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(-1)
        return self.w(x).sum((1, 2)) + pair


def batches(ring):
    while True:
        view = ring.take()
        rows = [decode.REC.unpack_from(view, i * decode.REC.size) for i in range(decode.ROWS)]
        if not any(r[-1] for r in rows):
            continue
        ring.release()
        t = torch.tensor(rows)
        yield t[:, :-1].long(), t[:, -1]


def main():
    rank = int(os.environ["RANK"])
    ring = Ring(16, decode.REC.size * decode.ROWS)
    decoder = decode.start(ring, day=rank)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FM()
    nn.init.normal_(model.v.weight, std=0.01)
    model = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adagrad(model.parameters(), 0.02)
    seen, t0 = 0, time.time()
    try:
        for step, (x, y) in enumerate(batches(ring)):
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(y)
            time.sleep(0.06)
            if step % 30 == 0:
                print(f"day{rank}: {seen} rows, logloss {loss.item():.4f}, {seen / (time.time() - t0):.0f} rows/s", flush=True)
            if step == 2000:
                break
    finally:
        os.kill(decoder, signal.SIGTERM)
        os.waitpid(decoder, 0)
    dist.barrier()
    dist.destroy_process_group()


main()
