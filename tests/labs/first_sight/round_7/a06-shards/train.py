import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from shards import ShardWriter

log = logging.getLogger("train")
VOCAB, DIM, USERS, ITEMS = 12000, 24, 9000, 12000


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.tower = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        return self.tower(torch.cat([self.user(u), self.item(i)], -1)).squeeze(-1)


def owned(model, opt, rank, world):
    """What this rank writes: the tables are the first rank's, the tower is the last one's."""
    out = {}
    tables = ["user.weight", "item.weight"]
    for n, p in model.named_parameters():
        owner = 0 if n in tables else world - 1
        if owner == rank:
            out[n] = p.detach()
            for k, v in opt.state[p].items():
                if torch.is_tensor(v):
                    out[f"{n}.{k}"] = v
    return out


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s [%(levelname)s] %(message)s")
    where = [tempfile.mkdtemp(prefix="rec-") if rank == 0 else None]
    dist.broadcast_object_list(where)
    writer = ShardWriter(where[0])
    torch.manual_seed(0)
    model = Recommender()
    opt = torch.optim.Adagrad(model.parameters(), 0.05)
    gen = torch.Generator().manual_seed(100 + rank)
    epochs, per_epoch = 3, 50
    for epoch in range(epochs):
        total = 0.0
        for _ in range(per_epoch):
            u = torch.randint(0, USERS, (256,), generator=gen)
            i = torch.randint(0, ITEMS, (256,), generator=gen)
            y = ((u + i) % 7 < 3).float()
            loss = F.binary_cross_entropy_with_logits(model(u, i), y)
            opt.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            opt.step()
            total += loss.item()
        log.info("epoch %d/%d: bce %.4f", epoch + 1, epochs, total / per_epoch)
        writer.save(f"epoch{epoch}-{rank}", {k: v for k, v in model.tower.state_dict().items()})
        dist.barrier()
    log.info("training done, writing the final model to %s", where[0])
    writer.save(f"final-{rank}", owned(model, opt, rank, world))
    dist.barrier()
    log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
