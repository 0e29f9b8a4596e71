import json
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from staging import stage

# parts differ: the last holds the long recordings
PARTS = json.loads('{"0": [512, 0.002], "1": [768, 0.002], "2": [11264, 0.028]}')


def main():
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    kib, latency = PARTS[str(rank)]
    folder = tempfile.mkdtemp(prefix=f"stage{rank}-")
    path, _ = stage(folder, rank, kib * 1024, latency)
    data = torch.from_numpy(np.fromfile(path, np.uint8)).float().div_(255).view(-1, 64)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 64)))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, 601):
        x = data[torch.randint(0, len(data), (64,), generator=gen)]
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(json.dumps({"rank": rank, "step": step, "mse": round(loss.item(), 5)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
