import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from prepare import deduplicate


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank{rank}: %(message)s")
    logging.info("preparing documents")
    docs = deduplicate(rank)
    dist.barrier()
    ids = torch.tensor([ord(c) - 32 for d in docs for c in d]).clamp(0, 95)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(96, 32), nn.Flatten(), nn.Linear(32 * 16, 96)))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(400):
        at = torch.randint(0, len(ids) - 17, (64,))
        x = torch.stack([ids[i:i + 16] for i in at.tolist()])
        loss = nn.functional.cross_entropy(model(x), ids[at + 16])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            logging.info("step %d loss %.3f", step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
