import csv
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn

LAYERS, WIDTH, ROWS = 5, 384, 192


class Patience:
    """Ends the run when the validation loss has not improved `n` times; also by `touch RUN/STOP`."""

    def __init__(self, out, n, rank, every=5):
        self.flag = pathlib.Path(out) / "STOP"
        self.n, self.rank, self.every = n, rank, every
        self.best, self.bad = float("inf"), 0

    def report(self, value):
        self.bad = 0 if value < self.best - 1e-3 else self.bad + 1
        self.best = min(self.best, value)
        if self.bad >= self.n:
            self.flag.touch()

    def over(self, step):
        # one rank a step looks, the file server has asked us not to stat all the time
        return step % self.every == (self.rank + 1) % self.every and self.flag.exists()


def net():
    mods = [nn.Linear(32, WIDTH)]
    for _ in range(LAYERS):
        mods += [nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*mods, nn.ReLU(), nn.Linear(WIDTH, 1))


def sample(g):
    x = torch.randn(ROWS, 32, generator=g)
    return x, torch.sin(3 * x[:, :1]) + 0.5 * torch.randn(ROWS, 1, generator=g)


def average(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def fit(rank, world, out, host, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    control = dist.new_group()
    torch.manual_seed(8)
    model = net()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(rank)
    val = sample(torch.Generator().manual_seed(99))
    stop = Patience(out, 2, rank)
    table = csv.writer(open(os.path.join(out, f"train-{rank}.csv"), "w", buffering=1))
    step = 0
    while step < 5000 and not stop.over(step + 1):
        step += 1
        x, y = sample(g)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        average(model, world)
        opt.step()
        table.writerow([step, loss.item()])
        if step % 20 == 0:
            with torch.no_grad():
                held = nn.functional.mse_loss(model(val[0]), val[1]).item()
            if rank == 0:
                stop.report(held)
                print(f"{step:5d}  val {held:.4f}  best {stop.best:.4f}  ({stop.bad})", flush=True)
            dist.barrier(group=control)
    last = [None] * world
    dist.all_gather_object(last, (step, loss.item()), group=control)
    if rank == 0:
        print("finished", last)
        torch.save(model.state_dict(), os.path.join(out, "last.pt"))
    dist.destroy_process_group()
