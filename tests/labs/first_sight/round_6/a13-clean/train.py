import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import Pages


class CharModel(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.lstm = nn.LSTM(d, d, batch_first=True)
        self.out = nn.Linear(d, 128)

    def forward(self, x):
        h, _ = self.lstm(self.emb(x))
        return self.out(h)


class JsonLog:
    def __init__(self, path):
        self.f = open(path, "a", buffering=1)

    def __call__(self, **kw):
        self.f.write(json.dumps(dict(kw, time=round(time.time(), 2))) + "\n")


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = JsonLog(f"train_rank{rank}.jsonl")
    torch.manual_seed(0)
    model = DDP(CharModel())
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    loader = DataLoader(Pages(200_000, rank), batch_size=48, num_workers=1, prefetch_factor=2)
    tic, waited = time.time(), 0.0
    it = iter(loader)
    for step in range(1, 4001):
        t0 = time.time()
        x = next(it)
        waited += time.time() - t0
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            log(step=step, loss=round(loss.item(), 4), s_per_step=round((time.time() - tic) / 10, 3),
                data=round(waited / 10, 4))
            tic, waited = time.time(), 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
