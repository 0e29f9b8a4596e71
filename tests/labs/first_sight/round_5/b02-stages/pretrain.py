import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist

from schedule import Wire, one_f_one_b

VOCAB, DIM, SEQ, MICRO = 1000, 160, 64, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.GRU(DIM, DIM, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.mix(x)[0]
        return x + self.ff(x)


def build(rank, world, layers):
    own = layers // world
    parts = [Block() for _ in range(own)]
    if rank == 0:
        parts.insert(0, nn.Embedding(VOCAB, DIM))
    if rank == world - 1:
        parts.append(nn.Linear(DIM, VOCAB))
    return nn.Sequential(*parts)


def batch_size_at(step, args):
    """Batch size ramp-up as in GPT-3: start small, grow linearly."""
    start, increment, every = args.rampup
    return min(args.global_batch, start + increment * (step // every))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--global-batch", type=int, default=16)
    p.add_argument("--rampup", type=int, nargs=3, default=(4, 4, 60))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(100 + rank)
    stage = build(rank, world, 4)
    opt = torch.optim.Adam(stage.parameters(), lr=3e-4)
    wire = Wire((MICRO, SEQ, DIM))
    gen = torch.Generator().manual_seed(1)
    loss_fn = lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten())
    tic = time.time()
    for step in range(args.steps):
        size = batch_size_at(step, args)
        ids = torch.randint(0, VOCAB, (size, SEQ + 1), generator=gen)
        micro = [(b[:, :-1], b[:, 1:]) for b in ids.split(MICRO)]
        loss = one_f_one_b(stage, wire, micro, loss_fn)
        nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        time.sleep(0.15)
        if rank == world - 1 and (step + 1) % 20 == 0:
            now = time.time()
            print(f" iteration {step + 1:8d}/{args.steps:8d} | elapsed time per iteration (ms): {(now - tic) / 20 * 1000:.1f} "
                  f"| global batch size: {size:5d} | lm loss: {loss:.6E} |", flush=True)
            tic = now
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
