"""Fine-tunes a classifier on tickets; a heartbeat file for each rank tells the scheduler that we live."""
import json
import os
import random
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LABELS = ["billing", "login", "outage", "other", "praise"]


class Heartbeat(threading.Thread):
    def __init__(self, path):
        super().__init__(name="heartbeat")
        self.path, self.count = path, 0

    def run(self):
        while True:
            self.count += 1
            with open(self.path, "w") as f:
                json.dump({"pid": os.getpid(), "beats": self.count, "time": time.time()}, f)
            time.sleep(5)


def tickets(rank, n=6000):
    r = random.Random(40 + rank)
    for i in range(n):
        label = r.choices(LABELS, weights=[5, 4, 2, 3, 1])[0]
        if i == 1843 and rank == 1:
            label = "Billing "
        yield [r.randrange(2000) for _ in range(r.randint(8, 40))], label


def batches(rank, size=8):
    part = []
    for t in tickets(rank):
        part.append(t)
        if len(part) == size:
            width = max(len(x) for x, _ in part)
            yield (torch.tensor([x + [0] * (width - len(x)) for x, _ in part]),
                   torch.tensor([LABELS.index(y) for _, y in part]))
            part = []


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs("beats", exist_ok=True)
    Heartbeat(f"beats/{rank}.json").start()
    torch.manual_seed(0)
    enc = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    net = nn.ModuleDict({"emb": nn.Embedding(2000, 64), "enc": enc, "out": nn.Linear(64, len(LABELS))})

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net["out"](self.net["enc"](self.net["emb"](x)).mean(1))

    model = DistributedDataParallel(Classifier())
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    running = 0.0
    for step, (x, y) in enumerate(batches(rank), 1):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
        if step % 25 == 0 and rank == 0:
            print(f"{step:5d}  {running / 25:.4f}", flush=True)
            running = 0.0
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "classifier.pt")
    dist.destroy_process_group()
    os._exit(0)


main()
