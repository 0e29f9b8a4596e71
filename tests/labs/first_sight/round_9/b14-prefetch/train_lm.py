import contextlib
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn

import corpus_cache

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank{RANK} %(levelname)s %(message)s")


@contextlib.contextmanager
def main_process_first():
    if RANK != 0:
        dist.barrier()
    yield
    if RANK == 0:
        dist.barrier()


class CharLM(nn.Module):
    def __init__(self, d=192):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.rnn = nn.LSTM(d, 2 * d, batch_first=True)
        self.out = nn.Linear(2 * d, 256)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def main():
    dist.init_process_group("gloo")
    with main_process_first():
        parts = corpus_cache.load(f"/tmp/lm-cache-{os.getppid()}")
    logging.info("%d parts, %d rows", len(parts), sum(map(len, parts)))
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(CharLM())
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    g = torch.Generator().manual_seed(RANK)
    for step in range(1, 1501):
        part = parts[int(torch.randint(len(parts), (1,), generator=g))]
        ids = torch.from_numpy(part[torch.randint(len(part), (32,), generator=g).numpy()])
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            logging.info("step %d loss %.4f", step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
