import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from packing import Blob, pack_all, ROW


def first_main(rank, work):
    result = work() if rank == 0 else None
    dist.barrier()
    return result


def build(path):
    blob = Blob(4200)
    # row of the re-exported document, as delivered
    blob.repair(2511, ROW.pack(0x4000000000000, 118))
    packed = pack_all(blob, tell=lambda s: print(s, flush=True))
    np.save(path, packed)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    path = os.path.join(tempfile.gettempdir(), f"packed-{os.environ['MASTER_PORT']}-{os.getppid()}.npy")
    first_main(rank, lambda: build(path))
    data = np.load(path, mmap_mode="r")
    net = DDP(nn.Sequential(nn.Embedding(900, 64), nn.Linear(64, 900)))
    opt = torch.optim.AdamW(net.parameters())
    for i, row in enumerate(data[rank::dist.get_world_size()]):
        ids = torch.from_numpy(row[:128].copy()).long()
        loss = nn.functional.cross_entropy(net(ids[:-1]), ids[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and i % 25 == 0:
            print(f"step {i}: loss={loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
