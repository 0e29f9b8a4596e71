import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

from clean import clean
from pages import pages


class WebText(IterableDataset):
    def __init__(self, rank, length=96):
        self.rank, self.length = rank, length

    def __iter__(self):
        buf = []
        for page in pages(self.rank):
            buf.extend(clean(page).encode())
            while len(buf) > self.length:
                yield torch.tensor(buf[:self.length + 1])
                buf = buf[self.length:]


class CharModel(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.conv = nn.Conv1d(d, d, 4)
        self.out = nn.Linear(d, 256)

    def forward(self, x):
        h = nn.functional.pad(self.emb(x).transpose(1, 2), (3, 0))
        return self.out(torch.relu(self.conv(h)).transpose(1, 2))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(CharModel())
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    data = DataLoader(WebText(rank), batch_size=16)
    tick = time.perf_counter()
    for step, batch in enumerate(data, 1):
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if rank == 0 and step % 20 == 0:
            now = time.perf_counter()
            print(f"step {step} bpc {loss.item() / 0.6931:.3f} {20 * 16 * 96 / (now - tick):.0f} char/s", file=sys.stderr)
            tick = now
        if step == 5000:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
