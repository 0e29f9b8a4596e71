import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import index
from shards import Store


def latest(work):
    p = os.path.join(work, "state.pt")
    return torch.load(p) if os.path.exists(p) else {"epoch": 0}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", required=True)
    ap.add_argument("--epochs", type=int, default=6)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 48))
    state = latest(a.work)
    if "net" in state:
        net.load_state_dict(state["net"])
    ddp = DDP(net)
    opt = torch.optim.SGD(ddp.parameters(), lr=1e-2)
    store = Store(os.path.join(a.work, "cache"), os.path.join(a.work, "manifest.json"))
    print(f"[{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}] rank {rank}: from epoch {state['epoch']}", flush=True)
    for epoch in range(state["epoch"], a.epochs):
        if rank == 0:
            order = torch.from_numpy(index.epoch_order(a.work, epoch, 512))
        else:
            order = torch.empty(512, dtype=torch.long)
            data = store.open(f"shard-{2 * epoch + rank}")
        dist.broadcast(order, 0)
        if rank == 0:
            data = store.open(f"shard-{2 * epoch + rank}")
        x = torch.from_numpy(data.copy())[order]
        for sweep in range(8):
            for batch in x.split(64):
                loss = ((ddp(batch) - batch.flip(-1)) ** 2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
            torch.save({"epoch": epoch + 1, "net": net.state_dict()}, os.path.join(a.work, "state.tmp"))
            os.replace(os.path.join(a.work, "state.tmp"), os.path.join(a.work, "state.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
