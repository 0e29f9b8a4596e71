import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from saver import Saver


class Tagger(nn.Module):
    def __init__(self, words=300, tags=12):
        super().__init__()
        self.emb = nn.Embedding(words, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, tags)

    def forward(self, w):
        return self.out(self.rnn(self.emb(w))[0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="tagger-") if rank == 0 else None]
    dist.broadcast_object_list(box, 0)
    saver = Saver(box[0], rank)
    torch.manual_seed(4)
    model = DistributedDataParallel(Tagger())
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    g = torch.Generator().manual_seed(rank)
    hard = []
    for step in range(1, 501):
        w = torch.randint(0, 300, (16, 20), generator=g)
        loss = nn.functional.cross_entropy(model(w).flatten(0, 1), (w % 12).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss.item() > 2.45 and rank == world - 1:
            hard.append(f"step {step}: {w[0, :5].tolist()}")
        time.sleep(0.03)
        if step % 25 == 0:
            t = time.time()
            saver.save(step, {"net": model.module.state_dict(), "opt": opt.state_dict()}, hard)
            print(f"<{rank}> step {step} loss {loss.item():.3f} saved in {time.time() - t:.2f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
