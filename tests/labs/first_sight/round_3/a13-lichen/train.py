import time

import torch
import torch.distributed as dist
import torch.nn as nn

import corpus


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 32)
        self.conv = nn.Conv1d(32, 64, 5, padding=4)
        self.out = nn.Linear(64, 64)

    def forward(self, x):
        h = self.conv(self.emb(x).transpose(1, 2))[..., : x.shape[1]]
        return self.out(h.relu().transpose(1, 2))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        corpus.build("corpus")
    dist.barrier()
    net = nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    n = 0
    for rows in corpus.windows("corpus", rank, world, ctx=96, batch=16):
        x = torch.tensor(rows)
        loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        time.sleep(0.25)
        print(f"rank={rank} step={n} loss={loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
