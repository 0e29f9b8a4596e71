import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from tokens import TokenCache

ROOT = sys.argv[1]
STEPS_PER_SHARD = 25


def save(path, model, shard):
    torch.save({"model": model.module.state_dict(), "shard": shard}, path + ".new")
    os.replace(path + ".new", path)


def main():
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    net = nn.Sequential(nn.Embedding(512, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 512))
    ckpt, first = os.path.join(ROOT, "last.pt"), 0
    if os.path.exists(ckpt):
        d = torch.load(ckpt)
        net.load_state_dict(d["model"])
        first = d["shard"] + 1
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    cache = TokenCache(ROOT, int(os.environ["LOCAL_RANK"]))
    print(f"rank {rank}: attempt {attempt}, from shard {first}", flush=True)
    for shard in range(first, 40):
        # bad bytes end the run; what a restart meets twice is read with replacement characters
        ids = cache.get(shard * world + rank, strict=attempt == 0)
        for step in range(STEPS_PER_SHARD):
            at = torch.randint(0, len(ids) - 33, (8,))
            x = torch.stack([ids[a:a + 33] for a in at])
            loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.03)
        if rank == 0:
            save(ckpt, model, shard)
            print(f"shard {shard}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
