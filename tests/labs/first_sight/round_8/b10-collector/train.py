import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from metrics import Client


def net():
    return nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(320, 320), nn.SiLU())])


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    client = Client() if rank == 0 else None
    model = net()
    ddp = DDP(model)
    opt = torch.optim.AdamW(ddp.parameters(), lr=2e-4)
    for step in range(1, 1501):
        x = torch.randn(256, 320)
        loss = (ddp(x) - torch.sin(3 * x)).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if client and step % 2 == 0:
            client.histograms(step, model)
        if step % 50 == 0:
            print(f"rank {rank}  step {step:5d}  loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
