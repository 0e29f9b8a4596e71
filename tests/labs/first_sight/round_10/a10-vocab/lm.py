import contextlib
import logging
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from text import Vocabulary, sentence

STAGES = [  # curriculum: (version of the vocabulary, steps, length)
    (1, 250, 24),
    (2, 2000, 32),
]


class LM(nn.Module):
    def __init__(self, size, dim=64):
        super().__init__()
        self.emb = nn.Embedding(size, dim)
        self.conv = nn.Conv1d(dim, dim, 4)
        self.out = nn.Linear(dim, size)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        h = torch.relu(self.conv(nn.functional.pad(h, (3, 0))))
        return self.out(h.transpose(1, 2))


@contextlib.contextmanager
def main_process_first(rank):
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


def train_stage(rank, log, version, steps, length):
    with main_process_first(rank):
        vocab = Vocabulary("cache", version)
    log.info("stage %d: %d words", version, len(vocab))
    torch.manual_seed(version)
    model = DDP(LM(len(vocab)))
    opt = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    rng = random.Random(1000 * version + rank)
    for step in range(1, steps + 1):
        ids = torch.tensor([vocab.encode(sentence(rng), length) for _ in range(12)])
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            log.info("stage %d step %d loss %.3f", version, step, loss.item())
    return model


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    log = logging.getLogger("lm")
    if rank == 0:
        for name in ("vocab-2.json", "usage.txt"):
            if os.path.exists(os.path.join("cache", name)):
                os.remove(os.path.join("cache", name))
    dist.barrier()
    for version, steps, length in STAGES:
        model = train_stage(rank, log, version, steps, length)
        if rank == 0:
            torch.save(model.module.state_dict(), f"stage{version}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
