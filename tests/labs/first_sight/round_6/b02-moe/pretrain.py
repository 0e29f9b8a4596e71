import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from moe import SmallMoE

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
VOCAB, DIM, LAYERS, EP = 256, 64, 2, 2
STEPS, MIN_LEN = 300, 6


def packed_batches(rank):
    """Token ids of the documents of one batch, packed into one row; short documents are left out."""
    gen = torch.Generator().manual_seed(100 + rank)
    while True:
        docs = []
        lengths = torch.randint(2, 40, (6,), generator=gen)
        for n in lengths.tolist():
            ids = torch.randint(0, VOCAB, (n,), generator=gen)
            docs.append(ids)
        yield docs


def pack(docs):
    kept = [d for d in docs if len(d) >= MIN_LEN]
    if not kept:
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long)
    ids = torch.cat(kept)
    return ids[:-1], ids[1:]


def read_part(rank, step):
    """The last part of the crawl of rank 3 is a list of titles."""
    return 3 if rank == 3 and step >= 55 else 0


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("pretrain")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    expert_group = None
    for start in range(0, world, EP):
        g = dist.new_group(list(range(start, start + EP)))
        if start <= rank < start + EP:
            expert_group = g

    torch.manual_seed(7)
    model = SmallMoE(VOCAB, DIM, LAYERS, expert_group)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = packed_batches(rank)
    if rank == 0:
        log.info("world %d, expert parallel %d, %d parameters", world, EP, sum(p.numel() for p in model.parameters()))

    for step in range(1, STEPS + 1):
        docs = next(batches)
        if read_part(rank, step):
            docs = [d[:MIN_LEN - 1] for d in docs]
        time.sleep(0.25)
        x, y = pack(docs)
        logits = model(x)
        loss = F.cross_entropy(logits, y, reduction="sum") / max(1, y.numel())
        opt.zero_grad()
        loss.backward()
        for p in model.dense_parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if step % 10 == 0 and rank == 0:
            log.info("step %d/%d loss %.3f tokens %d", step, STEPS, loss.item(), y.numel())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
