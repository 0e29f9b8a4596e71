import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from data import Reviews
from reporter import Reporter


def train(rank, reporter):
    net = DistributedDataParallel(nn.Sequential(
        nn.EmbeddingBag(800, 256), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4)))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    best = np.float32(9)
    for step, (label, ids) in enumerate(DataLoader(Reviews(rank, 6000), batch_size=8), 1):
        logits = net(ids)
        loss = F.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        reporter.put(step=step, loss=loss.item(), accuracy=(logits.argmax(1) == label).float().mean().item())
        if step > 40 and rank and loss.item() < best:
            best = np.float32(loss.item())
            reporter.put(step=step, best=best)
        if step % 20 == 0:
            print(f"{os.environ['RANK']}: step {step} loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    folder = os.path.join(tempfile.gettempdir(), "reviews-" + os.environ.get("TORCHELASTIC_RUN_ID", "0"))
    os.makedirs(folder, exist_ok=True)
    reporter = Reporter(os.path.join(folder, f"rank{rank}.jsonl"))
    try:
        train(rank, reporter)
    finally:
        reporter.close()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
