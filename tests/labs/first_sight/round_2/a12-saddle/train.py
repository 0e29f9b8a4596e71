import argparse
import json
import os
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LABELS = {name: i for i, name in enumerate(["cat", "dog", "fox", "hen", "owl"])}


class Journal:
    """Keeps what was measured; writing is done beside the training."""

    def __init__(self, path):
        self.file = open(path, "w")
        self.todo = queue.Queue()
        self.thread = threading.Thread(target=self.write, name="journal")
        self.thread.start()

    def add(self, **row):
        self.todo.put(row)

    def write(self):
        while (row := self.todo.get()) is not None:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()

    def close(self):
        self.todo.put(None)
        self.thread.join()
        self.file.close()


def samples(rank, gen):
    names = list(LABELS)
    number = 0
    while True:
        number += 1
        name = names[int(torch.randint(len(names), (1,), generator=gen))]
        if rank == 1 and number == 1500:
            name = "hén"
        yield torch.randn(20, generator=gen) + 0.4 * number % 3, name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs("journal", exist_ok=True)
    journal = Journal(f"journal/{rank}.jsonl")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, len(LABELS))))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    source = samples(rank, torch.Generator().manual_seed(rank))
    for step in range(args.steps):
        rows = [next(source) for _ in range(args.batch)]
        x = torch.stack([row[0] for row in rows])
        y = torch.tensor([LABELS[row[1]] for row in rows])
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        journal.add(step=step, loss=loss.item())
        time.sleep(0.1)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:5d}/{args.steps}  loss={loss.item():.4f}", flush=True)
    journal.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
