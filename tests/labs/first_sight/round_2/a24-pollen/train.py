"""Large effective batch on a small box: many small pieces are summed up before a step."""
import datetime
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PIECES, STEPS = 24, 7


def pieces(rank):
    """Steps of PIECES pieces; the last step of the epoch has what is left, which differs."""
    counts = [PIECES] * STEPS + ([6] if rank == 0 else [14])
    gen = torch.Generator().manual_seed(rank)
    for count in counts:
        yield [torch.randn(16, 64, generator=gen) for _ in range(count)]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    say = (lambda text: print(f"{datetime.datetime.now():%b %d %H:%M:%S} pollen[{rank}]: {text}", file=sys.stderr,
                              flush=True)) if rank == 0 else (lambda text: None)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    say("begin")
    seen = 0
    for step, parts in enumerate(pieces(rank)):
        opt.zero_grad()
        for i, x in enumerate(parts):
            target = x
            for _ in range(25):  # the teacher answers in rounds
                target = (target @ x.T @ x).tanh()
                time.sleep(0.016)
            if i + 1 < len(parts):
                with model.no_sync():
                    loss = nn.functional.mse_loss(model(x), target) / len(parts)
                    loss.backward()
            else:
                loss = nn.functional.mse_loss(model(x), target) / len(parts)
                loss.backward()
            seen += len(x)
        opt.step()
        if step % 6 == 5:
            say(f"step {step} loss {loss.item():.5f} seen {seen}")
    say("end of epoch")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
