import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from status import Status


class Denoiser(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, dim))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], -1))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Denoiser())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    status = None
    if rank == 0:
        out = tempfile.mkdtemp(prefix="denoise-")
        status = Status(os.path.join(out, "status.json"))
        print("status in", status.path, flush=True)
    modes = torch.randn(8, 32, generator=torch.Generator().manual_seed(9))
    step = 0
    while step < 100000:
        step += 1
        x = modes[torch.randint(0, 8, (16,))]
        t = torch.rand(16, 1)
        noise = torch.randn_like(x)
        loss = (model((1 - t) * x + t * noise, t) - noise).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if status is not None:
            status.add(step, loss.item())
        if rank == 0 and step % 100 == 0:
            print(f"[{step}] mse {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
