import math
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def beam(step_probs, width=12):
    beams = [((), 0.0)]
    for probs in step_probs:
        nxt = [(seq + (i,), score + math.log(p)) for seq, score in beams for i, p in enumerate(probs)]
        beams = sorted(nxt, key=lambda b: -b[1])[:width]
    return beams[0]


@torch.no_grad()
def decode_test_set(model, until):
    """Beam search over the test set, in Python."""
    good = total = 0
    while time.monotonic() < until:
        x = torch.randn(40, 24)
        probs = model(x).softmax(-1).tolist()
        seq, _ = beam(probs)
        good += sum(1 for s in seq if s == 3)
        total += len(seq)
        time.sleep(0.1)
    return good / max(total, 1)


def work(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 30)))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(1, 3):
        seen = 0.0
        for _ in range(70):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 24)), torch.randint(0, 30, (16,)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += loss.item()
            time.sleep(0.1)
        if rank == 0:
            print(f"epoch {epoch}: mean loss {seen / 70:.3f}", flush=True)
            acc = decode_test_set(model.module, time.monotonic() + 50)
            print(f"epoch {epoch}: test accuracy {acc:.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (2, port), nprocs=2)
