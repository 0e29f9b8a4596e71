import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from notify import Notifier


def evaluate(net, x, y):
    with torch.no_grad():
        pred = net(x).argmax(1)
    per_class = [np.mean((pred == y)[y == c].numpy()) for c in range(4)]
    return float(np.mean(per_class)), min(per_class)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    x = torch.randn(1600, 30)
    y = x[:, :4].argmax(1)
    ds = TensorDataset(x[:1280], y[:1280])
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, batch_size=32, sampler=sampler)
    net = DDP(torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 4)))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    note = Notifier("run_notes.jsonl") if rank == 0 else None
    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            time.sleep(0.22)
            loss = F.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        acc, worst = evaluate(net.module, x[1280:], y[1280:])
        best = max(best, acc)
        if rank == 0:
            print(f"== epoch {epoch + 1}/{args.epochs}: train_loss={loss.item():.4f} val_acc={acc:.4f} best={best:.4f}", flush=True)
            note.send(kind="epoch", epoch=epoch + 1, acc=acc)
    if rank == 0:
        note.send(kind="final", best=best, support=y[1280:].bincount().numpy())
        torch.save(net.module.state_dict(), "model_final.pt")
        print(f"saved model_final.pt (best {best:.4f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
