import os, json, time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from ckpt import AsyncCheckpointer

SAVE_EVERY = 25


def build():
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024),
                               torch.nn.GELU(), torch.nn.Linear(1024, 32))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(build())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ck = AsyncCheckpointer(os.environ["STORE_URL"]) if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    t = time.time()
    for step in range(1, 4001):
        x = torch.randn(192, 256, generator=g)
        y = (x[:, :32].argmax(1))
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0 and rank == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4), "sps": round(5 / (time.time() - t), 2)}), flush=True)
            t = time.time()
        if step % SAVE_EVERY == 0:
            if ck:
                ck.save(f"step-{step}.pt", {"model": model.module.state_dict(), "step": step})
            dist.barrier()
    if ck:
        ck.drain()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
