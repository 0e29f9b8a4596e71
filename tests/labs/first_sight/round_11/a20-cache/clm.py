import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from bpe import corpus, vocabulary


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp(prefix="merges-")] if rank == 0 else [None]
    dist.broadcast_object_list(folder, src=0)
    tokens = vocabulary(folder[0], rank)
    index = {t: i + 1 for i, t in enumerate(sorted(tokens))}
    ids = [index.get(w[k:k + 2], 0) for l in corpus(rank, 400) for w in l.split() for k in range(0, len(w), 2)]
    ids = torch.tensor(ids[:33 * 240]).view(-1, 33)
    loader = DataLoader(TensorDataset(ids), batch_size=8, shuffle=True, num_workers=1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(80, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 80)))
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    for epoch in range(3):
        mean = torch.zeros(1)
        for (b,) in loader:
            loss = F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            mean += loss.detach() / len(loader)
        dist.reduce(mean, 0)
        if rank == 0:
            print(f"epoch {epoch} ppl {(mean / dist.get_world_size()).exp().item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        for name in os.listdir(folder[0]):
            os.unlink(os.path.join(folder[0], name))
        os.rmdir(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
