import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import features

log = logging.getLogger("sensor")


class Budget:
    """How long this run may go on; the queue kills us otherwise."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def spent(self):
        return self.left() <= 0


class Trainer:
    def __init__(self, args, budget):
        self.args, self.budget = args, budget
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        x, y = features.load(args.path)
        n = int(len(x) * 0.9)
        self.x, self.y = x[self.rank:n:self.world], y[self.rank:n:self.world]
        self.vx, self.vy = x[n:], y[n:]
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(x.shape[1], args.hidden), nn.GELU(),
                            nn.Linear(args.hidden, args.hidden), nn.GELU(),
                            nn.Linear(args.hidden, args.hidden), nn.GELU(),
                            nn.Linear(args.hidden, 1))
        self.model = DistributedDataParallel(net)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.step = 0

    def batches(self):
        g = torch.Generator().manual_seed(self.rank)
        while True:
            for idx in torch.randperm(len(self.x), generator=g).split(self.args.batch):
                yield self.x[idx], self.y[idx]

    def fit(self):
        for x, y in self.batches():
            if self.budget.spent():
                log.info("time is up after %d steps", self.step)
                break
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % 100 == 0 and self.rank == 0:
                log.info("step %d loss %.5f, %.0f s left", self.step, loss.item(), self.budget.left())
            time.sleep(0.01)

    @torch.no_grad()
    def evaluate(self):
        part = self.vx.shape[0] // self.world
        s = slice(self.rank * part, (self.rank + 1) * part)
        err = (self.model.module(self.vx[s]) - self.vy[s]).abs().flatten()
        gathered = [torch.empty_like(err) for _ in range(self.world)]
        dist.all_gather(gathered, err)
        return torch.cat(gathered).median().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", required=True)
    ap.add_argument("--rows", type=int, default=60000)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--seconds", type=float, default=float(os.environ.get("MAX_SECONDS", 3600)))
    args = ap.parse_args()
    args.path = os.path.join(args.work, f"features-{args.rows}x{args.dim}.pt")

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(name)s: %(message)s")
    if rank == 0:
        budget = Budget(args.seconds)
        log.info("building %s", args.path)
        features.build(args.path, args.rows, args.dim, seed=3)
        dist.barrier()
    else:
        dist.barrier()
        budget = Budget(args.seconds)
    trainer = Trainer(args, budget)
    trainer.fit()
    log.info("evaluating")
    med = trainer.evaluate()
    if rank == 0:
        torch.save({"model": trainer.model.module.state_dict(), "step": trainer.step},
                   os.path.join(args.work, "last.pt"))
        log.info("median error %.4f, saved", med)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
