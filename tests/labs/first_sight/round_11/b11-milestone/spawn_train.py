import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from bookkeeping import Book


def train(rank, world, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://localhost:31611", rank=rank, world_size=world)
    torch.manual_seed(0)
    table = nn.EmbeddingBag(40_000, 128, sparse=False)
    head = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    table.weight.requires_grad_(False)  # pre-trained
    model = DDP(nn.Sequential(table, head))
    opt = torch.optim.Adam(head.parameters(), 1e-3)
    book = Book("run") if rank == 0 else None
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, steps + 1):
        x = torch.randint(0, 40_000, (64, 30), generator=gen)
        loss = nn.functional.cross_entropy(model(x), x.sum(1) % 10)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            if step % 100 == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)
            if step % 100 == 0:
                book.keep(model.module)
                book.save(f"step{step}", milestone=step % 400 == 0)
            elif step % 20 == 0:
                book.note(step, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, (3, 100_000), nprocs=3)
