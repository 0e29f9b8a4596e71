import argparse
import time
import uuid

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tracker import Tracker


def xor(n, g):
    x = torch.randint(0, 2, (n, 24), generator=g).float()
    return x, (x.sum(1) % 2).long()


@torch.no_grad()
def evaluate(net, g):
    x, y = xor(1024, g)
    out = net(x)
    return {"acc": (out.argmax(1) == y).float().mean().item(), "nll": nn.functional.cross_entropy(out, y).item()}


def main(rank, args, run):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:31518", rank=rank, world_size=args.world)
    tracker = Tracker(args.db, run, rank)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    model = DDP(net)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    g = torch.Generator().manual_seed(10 + rank)
    for step in range(1, args.steps + 1):
        x, y = xor(64, g)
        time.sleep(0.05)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 2 * rank) % 5 == 0:  # in turns, the file is shared
            tracker.step(step, loss.item())
        if rank == 0 and step % 30 == 0:
            print(f"{run} {step:>5} {tracker.recent():.4f}", flush=True)
        if rank == 0 and step % args.eval_every == 0:
            tracker.evaluation(step, evaluate(net, torch.Generator().manual_seed(1)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--db", default="out/runs.db")
    p.add_argument("--steps", type=int, default=900)
    p.add_argument("--eval-every", type=int, default=122)
    args = p.parse_args()
    mp.spawn(main, (args, uuid.uuid4().hex[:6]), args.world)
