import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from pipe import FlushSchedule, Stage


def ramp(consumed, spec):
    """Batch-size ramp-up, in micro-batches per step: [[from_step, n], ...]"""
    n = spec[0][1]
    for start, value in spec:
        if consumed >= start:
            n = value
    return n


class Regression:
    def __init__(self, seed, rows, n_in):
        self.g = torch.Generator().manual_seed(seed)
        self.w = torch.randn(n_in, generator=self.g) / n_in ** 0.5
        self.rows, self.n_in = rows, n_in
        self.drawn = 0

    def take(self, n):
        xs, ys = [], []
        for _ in range(n):
            x = torch.randn(self.rows, self.n_in, generator=self.g)
            y = x @ self.w
            if self.drawn % 97 == 34:          # sensor saturates now and then
                y = y * 25
            self.drawn += 1
            xs.append(x)
            ys.append(y)
        return xs, ys


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="config.json")
    cfg = json.load(open(ap.parse_args().config))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg["seed"] + rank)
    stage = Stage(cfg["width"], cfg["depth"], rank == 0, rank == world - 1)
    opt = torch.optim.AdamW(stage.parameters(), lr=cfg["lr"])
    sched = FlushSchedule(stage, rank, world, cfg["rows"], cfg["width"], cfg["spike"])
    data = Regression(cfg["seed"], cfg["rows"], 64)
    consumed, t0 = 0, time.time()
    for step in range(cfg["steps"]):
        n = ramp(consumed, cfg["rampup"])
        xs, ys = data.take(n)
        opt.zero_grad(set_to_none=True)
        loss, fine = sched.run(xs, ys, n, F.mse_loss)
        if not fine:
            print(f"[stage {rank}] step {step}: loss {loss:.2f} against {sched.ema:.3f}, update skipped", flush=True)
            continue
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        opt.step()
        consumed += 1
        if rank == world - 1 and consumed % 5 == 0:
            print(f"[stage {rank}] step {step} micro {n} loss {loss:.4f} ema {sched.ema:.4f} {time.time() - t0:.1f}s", flush=True)
    dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
