import logging
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from scoring import Scorer
from tagger import Tagger, corpus

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("tagger")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    log.info("rank %d of %d, pid %d", rank, world, os.getpid())
    torch.manual_seed(3)
    net = DDP(Tagger())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scorer = Scorer("heldout.tsv", rank, world)
    stream = corpus(seed=rank)
    for step in range(1, 2001):
        words, tags = next(stream)
        loss = torch.nn.functional.cross_entropy(net(words).flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 and rank == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step % 30 == 0:
            name, acc = scorer.next(net.module)
            if acc is not None and rank == 0:
                log.info("step %d %s accuracy %.4f", step, name, acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
