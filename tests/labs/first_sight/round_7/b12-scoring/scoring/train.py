import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .common import Classifier, setup, texts


def score(model, step):
    """In a process of its own, so that the evaluation's memory is given back."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        torch.save(model.state_dict(), f.name)
        out = subprocess.run([sys.executable, "-m", "scoring.evaluate", f.name], capture_output=True, text=True, check=True)
    result = json.loads(out.stdout)
    print(f"step {step}: held-out accuracy {result['accuracy']:.2%} of {result['n']}", flush=True)


def main():
    rank, world = setup()
    torch.manual_seed(0)
    net = Classifier()
    model = DistributedDataParallel(net)
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    x, y = texts(rank, 8192)
    begin = time.time()
    for step in range(1, 601):
        k = step * 32 % 8160
        loss = nn.functional.cross_entropy(model(x[k:k + 32]), y[k:k + 32])
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}/600 loss {loss.item():.4f} ({step / (time.time() - begin):.1f} it/s)", flush=True)
        if step % 150 == 0 and rank == 0:
            score(net, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
