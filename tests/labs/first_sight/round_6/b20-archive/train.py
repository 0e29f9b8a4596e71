import argparse
import os
import pickle
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


RATE = 0.55e6     # bytes a second; the file server locks out who writes faster


def archive(path, model, opt, step):
    """Weights and optimizer, packed and written slowly."""
    raw = pickle.dumps({
        "step": step,
        "model": {k: v.numpy() for k, v in model.state_dict().items()},
        "optimizer": opt.state_dict(),
    })
    packer = zlib.compressobj(level=1)
    with open(path + ".part", "wb") as f:
        for at in range(0, len(raw), 1 << 18):
            data = packer.compress(raw[at:at + (1 << 18)])
            f.write(data)
            f.flush()
            time.sleep(len(data) / RATE)
        f.write(packer.flush())
        os.fsync(f.fileno())
    os.replace(path + ".part", path)
    return len(raw), os.path.getsize(path)


class Embedder(nn.Module):
    def __init__(self, words=10000, dim=64):
        super().__init__()
        self.a = nn.Embedding(words, dim)
        self.b = nn.Embedding(words, dim)

    def forward(self, i, j):
        return (self.a(i) * self.b(j)).sum(dim=1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--save-every", type=int, default=80)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Embedder()
    ddp = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        i = torch.randint(0, 10000, (256,), generator=gen)
        j = (i * 7 + 3) % 10000
        far = torch.randint(0, 10000, (256,), generator=gen)
        out = ddp(torch.cat([i, i]), torch.cat([j, far]))
        goal = torch.cat([torch.ones(256), torch.zeros(256)])
        loss = nn.functional.binary_cross_entropy_with_logits(out, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if rank == 0 and step % 20 == 0:
            print(f"[{time.strftime('%H:%M:%S')}] step {step} loss {loss.item():.4f}", flush=True)
        if step % args.save_every == 0:
            if rank == 0:
                before, after = archive("embedder.z", model, opt, step)
                print(f"[{time.strftime('%H:%M:%S')}] saved {before >> 20} MB as {after >> 20} MB", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
