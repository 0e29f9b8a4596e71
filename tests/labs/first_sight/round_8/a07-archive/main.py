import os
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from slowfs import ShareFile


def main(rank, world, port, root):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 8))
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, 601):
        x = torch.randn(64, 64, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 300 == 0:
            f = ShareFile(os.path.join(root, f"step{step}-rank{rank}.pt"), rate=48 * 1024)
            torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, f)
            f.close()
            dist.barrier()
    if rank == 0:
        print("archived", sorted(os.listdir(root)))
    dist.destroy_process_group()


if __name__ == "__main__":
    root = tempfile.mkdtemp(prefix="archive-")
    try:
        mp.spawn(main, args=(2, int(sys.argv[1]), root), nprocs=2)
    finally:
        shutil.rmtree(root)
