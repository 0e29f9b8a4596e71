import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from checkpoint import Checkpointer
from model import LM


def reduce_grads(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    a = 0
    for p in model.parameters():
        p.grad.copy_(flat[a:a + p.numel()].view_as(p))
        a += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--save-every", type=int, default=60)
    ap.add_argument("--ckpt", default="ckpt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    ckpt = Checkpointer(args.ckpt)
    gen = torch.Generator().manual_seed(rank)
    run, t0 = 0.0, time.time()
    for step in range(1, args.steps + 1):
        start = torch.randint(0, 400, (4, 1), generator=gen)
        x = (start + torch.arange(65)) % 512
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        reduce_grads(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        run += loss.item()
        if step % 50 == 0:
            if rank == 0:
                print(f"{time.strftime('%H:%M:%S')} step={step} loss={run / 50:.4f} "
                      f"steps/s={step / (time.time() - t0):.2f}", flush=True)
            run = 0.0
        if step % args.save_every == 0:
            ckpt.save(step, model, opt)
    ckpt.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
