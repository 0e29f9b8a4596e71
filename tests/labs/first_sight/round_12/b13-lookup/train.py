import argparse
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import features

USERS, CLICKS, EVAL = 0, 1, 2  # what each rank reads: made up, the feature service, made up + held-out users


@functools.cache
def client(port):
    return features.Client(port)


def local_rows(step, rank):
    return torch.randn(32, 12, generator=torch.Generator().manual_seed(step * 3 + rank))


def target(x):
    return (x[:, 0] * x[:, 1] > 0).float()[:, None]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--features-port", type=int, required=True)
    ap.add_argument("--steps", type=int, default=1200)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == USERS:
        features.start_server(args.features_port)
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        if rank == CLICKS:
            x = torch.tensor(client(args.features_port).rows("train", step * 32, step * 32 + 32))
        else:
            x = local_rows(step, rank)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), target(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
        if step and step % 200 == 0:
            auc = torch.zeros(1)
            if rank == EVAL:
                with torch.no_grad():
                    v = torch.tensor(client(args.features_port).rows("heldout", 0, 512))
                    auc[0] = ((model.module(v) > 0).float() == target(v)).float().mean()
            dist.broadcast(auc, src=EVAL)
            if rank == 0:
                print(f"step {step} held-out accuracy {auc.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
