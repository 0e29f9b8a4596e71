import os
import time
import urllib.request

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def fetch(url):
    req = urllib.request.Request(url, headers={"X-Client": f"trainer-{RANK}"})
    with urllib.request.urlopen(req) as r:
        return r.read()


def my_shards():
    names = [line.split()[0] for line in open("manifest.tsv")]
    return names[RANK::WORLD]


def windows(raw, size=256, limit=8):
    a = np.frombuffer(raw, dtype=np.uint8)
    a = a[: len(a) // size * size].reshape(-1, size)
    for i in range(limit):
        rows = a[i::limit][:16]
        yield torch.from_numpy(rows.astype(np.float32) / 255)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="env://")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 256))
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    base = f"http://127.0.0.1:{open('blob.port').read()}/shards"
    done = 0
    for name in my_shards():
        t0 = time.time()
        raw = fetch(f"{base}/{name}")
        waited = time.time() - t0
        for x in windows(raw):
            loss = (model(x) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            flat /= WORLD
            at = 0
            for p in model.parameters():
                p.grad.copy_(flat[at : at + p.numel()].view_as(p))
                at += p.numel()
            opt.step()
            done += 1
        print(f"rank{RANK} {time.strftime('%H:%M:%S')} {name} {len(raw) // 1024} KiB in {waited:.2f}s, "
              f"batches {done}, loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


main()
