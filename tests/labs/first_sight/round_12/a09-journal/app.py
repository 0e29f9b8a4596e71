import asyncio
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from journal import Journal, NoJournal


def one_step(model, opt, gen):
    x = torch.randn(32, 200, generator=gen)
    y = x[:, :1].sin()
    loss = (model(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    return loss.item(), norm


async def evaluate(model, gen):
    errors = []
    with torch.no_grad():
        for _ in range(20):
            x = torch.randn(64, 200, generator=gen)
            errors.append((model(x) - x[:, :1].sin()).abs().mean())
            await asyncio.sleep(0)
    return torch.stack(errors).mean()


async def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = DDP(nn.Sequential(nn.Linear(200, 900), nn.SiLU(), nn.Linear(900, 900), nn.SiLU(), nn.Linear(900, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    gen = torch.Generator().manual_seed(50 + rank)
    journal = Journal("journal.jsonl") if rank == 0 else NoJournal()
    journal.start()
    for step in range(1, 401):
        loss, norm = one_step(model, opt, gen)
        journal.add(step=step, loss=loss, grad_norm=round(norm.item(), 4))
        await asyncio.sleep(0)
        if step % 100 == 0:
            mae = await evaluate(model.module, gen)
            if step < 400:
                journal.add(step=step, mae=mae.item())
            print(f"rank{rank} {step:>4} mae={mae:.4f}", flush=True)
    journal.add(final=True, mae=mae)
    await journal.close()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.barrier()
    if rank == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


asyncio.run(main())
