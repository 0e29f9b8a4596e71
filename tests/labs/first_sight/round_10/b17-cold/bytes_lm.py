import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import local_copy


class ByteLM(nn.Module):
    def __init__(self, dim=160):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, 256)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", required=True)
    ap.add_argument("--steps", type=int, required=True)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank{rank} %(message)s")
    torch.manual_seed(0)
    data = local_copy(rank, args.cache)
    model = DDP(ByteLM())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    rng = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        at = torch.randint(0, len(data) - 65, (8,), generator=rng).tolist()
        x = torch.stack([torch.from_numpy(data[a:a + 65].astype("int64")) for a in at])
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0 and rank == 0:
            logging.info("step %d loss %.4f", step, loss.item())
    if rank == 0:
        torch.save(model.module.state_dict(), "bytes_lm.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
