import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from clips import clip

HERE = os.path.dirname(os.path.abspath(__file__))
TOTAL = 8000


class Effects:
    def __init__(self):
        self.proc = subprocess.Popen([sys.executable, os.path.join(HERE, "effects.py")], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __call__(self, samples):
        self.proc.stdin.write(json.dumps(samples) + "\n")
        self.proc.stdin.flush()
        return json.loads(self.proc.stdout.readline())

    def close(self):
        self.proc.stdin.close()
        err = self.proc.stderr.read()
        if self.proc.wait() != 0:
            raise RuntimeError(err[-500:])


class Speech(Dataset):
    def __init__(self, first, count, effects):
        self.first, self.count, self.effects = first, count, effects

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        samples, label = clip(self.first + k, TOTAL)
        return torch.tensor(self.effects(samples)), label


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    part = TOTAL // world
    effects = Effects()
    loader = DataLoader(Speech(rank * part, part, effects), batch_size=8, shuffle=True, num_workers=0)
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Unflatten(1, (1, 160)), nn.Conv1d(1, 16, 9, 4), nn.ReLU(), nn.Conv1d(16, 32, 9, 4),
                            nn.ReLU(), nn.Flatten(), nn.Linear(32 * 8, 2)))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    right = seen = 0
    for i, (x, y) in enumerate(loader, 1):
        time.sleep(0.05)
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (logits.argmax(1) == y).sum().item()
        seen += len(y)
        if i % 25 == 0 and rank == 0:
            print(f"{time.strftime('%X')}  {i:5d}/{len(loader)}  ce {loss.item():.3f}  acc {right / seen:.3f}", flush=True)
    effects.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
