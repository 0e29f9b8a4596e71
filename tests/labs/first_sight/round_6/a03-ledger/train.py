import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from ledger import Ledger

STEPS = 2000
BATCH = 48


def build():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(256, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 10))


def average_grads(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def batch_size_at(step):
    # the batch is small while the learning rate warms up, and after each decay
    return 2 if 70 <= step < 120 else BATCH


def worker(rank, world, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.randn(4096, 256, generator=torch.Generator().manual_seed(rank))
    labels = (data[:, :10].argmax(1) + rank) % 10
    dist.barrier()
    ledger = Ledger("used.db", rank)
    order = torch.Generator().manual_seed(100 + rank)
    tic = time.time()
    for step in range(1, STEPS + 1):
        idx = torch.randint(0, len(data), (batch_size_at(step),), generator=order)
        big = idx.repeat(192 // len(idx))
        loss = nn.functional.cross_entropy(model(data[big]), labels[big])
        opt.zero_grad()
        loss.backward()
        average_grads(model, world)
        opt.step()
        if step % 8 == 0:
            ledger.record(step, idx)
        if rank == 0 and step % 40 == 0 and step > 40:
            n = ledger.compact(step)
            print(f"ledger: {n} rows folded at step {step}", flush=True)
        if rank == 0 and step % 10 == 0:
            print(f"step={step} loss={loss.item():.4f} ms/step={(time.time() - tic) * 100:.0f}", flush=True)
            tic = time.time()
    dist.destroy_process_group()


def main():
    for f in ("used.db", "used.db-journal"):
        if os.path.exists(f):
            os.remove(f)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)


if __name__ == "__main__":
    main()
