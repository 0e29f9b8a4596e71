"""Sharded softmax over many classes: each rank keeps and saves the rows of its own classes."""
import io
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from throttle import Throttled

CLASSES, DIM, RATE = 8000, 64, 45_000


def save(folder, rank, state):
    buf = io.BytesIO()
    torch.save(state, buf)
    f = Throttled(os.path.join(folder, f"rows{rank}.pt"), RATE)
    f.write(buf.getbuffer())
    f.close()
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp(prefix="volume-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    folder = folder[0]
    mine = CLASSES // world
    torch.manual_seed(rank)
    rows = nn.Parameter(0.05 * torch.randn(mine, DIM))
    truth = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(1))
    opt = torch.optim.SGD([rows], 0.5, momentum=0.9)
    gen = torch.Generator().manual_seed(2)
    for epoch in range(2):
        for step in range(150):
            y = torch.randint(0, CLASSES, (64,), generator=gen)
            x = truth[y] + 0.5 * torch.randn(64, DIM, generator=gen)
            logits = x @ rows.T
            top = logits.detach().max(1).values
            dist.all_reduce(top, dist.ReduceOp.MAX)
            e = (logits.detach() - top[:, None]).exp()
            total = e.sum(1)
            dist.all_reduce(total)
            grad = e / total[:, None]
            local = y - rank * mine
            here = (local >= 0) & (local < mine)
            grad[here.nonzero().flatten(), local[here]] -= 1
            opt.zero_grad()
            logits.backward(grad / 64)
            opt.step()
            if rank == 0 and step % 50 == 49:
                print(f"epoch {epoch} step {step + 1}", flush=True)
        if epoch == 0:
            save(folder, rank, {"rows": rows.data, "momentum": opt.state[rows]["momentum_buffer"]})
    if rank == 0:
        print("finished", flush=True)
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
