import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from augment import Augmenter

SIDE = 48


def load_images(rank, step, n=6):
    """Rank 0 reads the scans, which are all of one size, the others the photographs."""
    rng = np.random.default_rng(step * 64 + rank)
    if rank == 0:
        sizes = [(160, 160)] * n
    else:
        sizes = [(int(rng.integers(96, 260)), int(rng.integers(96, 260))) for _ in range(n)]
    return [rng.random(s, dtype=np.float32) for s in sizes]


def to_tensor(images):
    out = []
    for im in images:
        t = torch.from_numpy(im)[None, None]
        out.append(nn.functional.interpolate(t, size=(SIDE, SIDE), mode="bilinear", align_corners=False)[0])
    return torch.stack(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(12, 1, 1))

    def forward(self, x):
        return self.body(x)


def main():
    augment = Augmenter()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clock = time.monotonic()
    for step in range(1, 4001):
        x = to_tensor(augment(step, load_images(rank, step)))
        mask = (x > 0.5).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.25)
        augment.trim()
        if step % 10 == 0 and rank == 0:
            now = time.monotonic()
            print(f"Iter: [{step}/4000]\tTime {(now - clock) / 10:.3f}\tLoss {loss.item():.4e}", flush=True)
            clock = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
