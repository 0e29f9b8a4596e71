"""2-D parallel MLP regression: data parallel x tensor parallel, collectives by hand."""
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh

STEPS = int(os.environ.get("STEPS", 130))
DIM, HIDDEN, BATCH = 64, 512, 32
SPIKE = float(os.environ.get("SPIKE", 5.0))


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class ReduceOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


class ParallelMLP(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.tp = tp
        n = HIDDEN // dist.get_world_size(tp)
        torch.manual_seed(7)
        self.inp = nn.Linear(DIM, DIM)
        torch.manual_seed(70 + dist.get_rank(tp))
        self.up = nn.Linear(DIM, n)
        self.down = nn.Linear(n, DIM, bias=False)

    def forward(self, x):
        x = CopyIn.apply(self.inp(x), self.tp)
        return ReduceOut.apply(self.down(torch.relu(self.up(x))), self.tp)


def shard_norm(params):
    return torch.stack([p.grad.norm() for p in params]).norm().item()


def sync_grads(params, dp):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat, group=dp)
    flat /= dist.get_world_size(dp)
    o = 0
    for p in params:
        p.grad.copy_(flat[o:o + p.numel()].view_as(p))
        o += p.numel()


def batches(dp_rank):
    """Telemetry windows; the sensors of the second site sometimes saturate one channel."""
    g = torch.Generator().manual_seed(1000 + dp_rank)
    for i in range(STEPS):
        x = torch.randn(BATCH, DIM, generator=g)
        y = torch.tanh(x.flip(1))
        if dp_rank == 1 and i == 46:
            x[:, 9] += 40.0
        yield x, y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    model = ParallelMLP(tp)
    params = list(model.parameters())
    shard = list(model.up.parameters()) + list(model.down.parameters())
    opt = torch.optim.SGD(params, lr=0.02)
    t0 = time.time()
    skipped = 0
    for step, (x, y) in enumerate(batches(dist.get_rank(dp))):
        time.sleep(0.1)
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        n = shard_norm(shard)
        if n > SPIKE:  # bad window, don't let it into the weights
            skipped += 1
            continue
        sync_grads(params, dp)
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 5), "gnorm": round(n, 4),
                              "sec": round(time.time() - t0, 2)}), flush=True)
    dist.barrier()
    torch.save(model.state_dict(), f"shard_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
