import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from client import BatchStream


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU())
        self.out = nn.Linear(16 * 40, 1)

    def forward(self, x):
        return self.out(self.enc(x[:, None]).flatten(1)).squeeze(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Detector())
    opt = torch.optim.RMSprop(model.parameters(), 1e-3)
    for step, x in enumerate(BatchStream(int(sys.argv[1]), rank)):
        y = (x[:, :10].sum(1) > 0).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % 15 == 0:
            print(json.dumps({"rank": rank, "step": step, "loss": round(loss.item(), 4), "n": len(x)}), flush=True)
        if step == 3000:
            break
    dist.destroy_process_group()


main()
