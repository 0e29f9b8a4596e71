import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = 160


def flat_sync(model, loss):
    """One reduction per step: all gradients and the loss in a single buffer."""
    grads = [p.grad for p in model.parameters()]
    buf = torch.cat([g.flatten() for g in grads] + [loss.detach().view(1)])
    dist.all_reduce(buf)
    buf /= dist.get_world_size()
    at = 0
    for g in grads:
        g.copy_(buf[at:at + g.numel()].view_as(g))
        at += g.numel()
    return buf[-1].item()


def batches(rank):
    gen = torch.Generator().manual_seed(900 + rank)
    for i in range(STEPS):
        x = torch.randn(64, 200, generator=gen)
        if rank == 1 and i == 97:
            x[5] = x[5] / torch.zeros(200)
        time.sleep(0.06)
        yield x


def export(model):
    path = os.path.join("/tmp", f"export-{os.getpid()}.pt")
    torch.save(model.state_dict(), path)
    os.remove(path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.TCPStore("127.0.0.1", 30862, None, rank == 0, datetime.timedelta(hours=6))
    model = nn.Sequential(nn.Linear(200, 400), nn.GELU(), nn.Linear(400, 200))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    skipped = 0
    for step, x in enumerate(batches(rank)):
        loss = (model(x) - x.flip(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            skipped += 1
            continue
        mean = flat_sync(model, loss)
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"{time.strftime('%H:%M:%S')} | {step:4d} | {mean:.5f} | {norm:.3f}", flush=True)
    if rank == 0:
        export(model)
        store.set("exported", "1")
    else:
        store.wait(["exported"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
