import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from packing import PackedSampler

VOCAB, BUDGET = 200, 1024


class Documents(Dataset):
    def __init__(self):
        rng = random.Random(11)
        self.lengths = [rng.choice([40, 90, 130, 200, 310]) for _ in range(700)]
        self.lengths[::23] = [1300] * len(self.lengths[::23])

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        start = torch.randint(0, VOCAB, (1,), generator=g)
        return (start + torch.arange(self.lengths[i] + 1) * (1 + i % 3)) % VOCAB


def collate(docs):
    return torch.cat([d[:-1] for d in docs]), torch.cat([d[1:] for d in docs])


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 64)
        self.out = nn.Linear(64, VOCAB)

    def forward(self, t):
        return self.out(self.emb(t))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = Documents()
    sampler = PackedSampler(data.lengths, BUDGET, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(Bigram())
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    seen = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        with Join([model]):
            for i, (x, y) in enumerate(loader):
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += len(x)
                time.sleep(0.1)
                bar = "#" * (i % 40)
                if rank == 0:
                    print(f"\rEpoch {epoch}: {bar:<40} it {i} loss {loss.item():.3f}", end="", flush=True)
        if rank == 0:
            print(f"  {seen} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
