import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import trange

from steplog import StepLog

STEPS = 20000


class Autoencoder(nn.Module):
    def __init__(self, width=96, code=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, code))
        self.dec = nn.Sequential(nn.Linear(code, 64), nn.Tanh(), nn.Linear(64, width))

    def forward(self, x):
        return self.dec(self.enc(x))


def grad_norms(model):
    return {name: round(p.grad.norm().item(), 5) for name, p in model.named_parameters()}


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = DDP(Autoencoder())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    os.makedirs("out", exist_ok=True)

    # the last rank keeps the log: rank 0 has the checkpoints to write
    log = StepLog("out/steps.jsonl") if rank == world - 1 else None
    if log:
        log.write("start", world=world, torch=torch.__version__)
        log.start_beat()

    basis = torch.randn(12, 96, generator=torch.Generator().manual_seed(1))
    gen = torch.Generator().manual_seed(rank)
    bar = trange(STEPS, disable=rank != 0, file=sys.stderr, mininterval=2, desc="ae")
    for step in bar:
        x = torch.randn(64, 12, generator=gen) @ basis
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if log:
            log.step(step, loss=loss.item(), norms=grad_norms(model.module))
        if rank == 0 and step % 500 == 0:
            torch.save(model.module.state_dict(), "out/model.pt")
            bar.set_postfix(loss=f"{loss.item():.4f}")
    if log:
        log.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
