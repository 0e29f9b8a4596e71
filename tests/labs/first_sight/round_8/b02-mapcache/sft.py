import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from prep import load_split


class LM(nn.Module):
    def __init__(self, vocab=512, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids[:, :-1]))
        return nn.functional.cross_entropy(self.out(h).flatten(0, 1), ids[:, 1:].flatten())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    box = [tempfile.mkdtemp(prefix="sft-cache-") if rank == 0 else None]
    dist.broadcast_object_list(box)
    cache = box[0]

    # main process first
    if rank != 0:
        dist.barrier()
    train = load_split(cache, "train", 4000)
    if rank == 0:
        dist.barrier()

    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[rank::world]
    for step in range(300):
        rows = order[(step * 8) % (len(order) - 8):][:8]
        ids = torch.from_numpy(train[rows.numpy()]).long()
        loss = model(ids)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print({"loss": round(loss.item(), 4), "global_step": f"{step}/300"}, flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(cache, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
