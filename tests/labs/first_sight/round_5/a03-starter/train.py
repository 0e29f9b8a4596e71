import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

MAX_LEN = 48


class Texts(torch.utils.data.Dataset):
    """Documents of varying length; longer ones are cut."""

    def __init__(self, rank, n=4096):
        self.rank, self.n = rank, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.rank * 100003 + i)
        length = int(torch.randint(16, 80, (1,), generator=g))
        ids = torch.randint(1, 500, (length,), generator=g)
        if length > MAX_LEN:
            print(f"WARN document {i:06d}: {length} tokens, cut to {MAX_LEN} "
                  f"(source=part-{i // 512:05d}.jsonl)")
            ids = ids[:MAX_LEN]
        return nn.functional.pad(ids, (0, MAX_LEN - len(ids)))


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.EmbeddingBag(500, 64, padding_idx=0), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Texts(rank), batch_size=args.batch, shuffle=True)
    step, t0 = 0, time.time()
    while step < args.steps:
        for batch in loader:
            target = batch.sum(1) % 10
            loss = nn.functional.cross_entropy(model(batch), target)
            opt.zero_grad()
            loss.backward()
            average_gradients(model, world)
            opt.step()
            time.sleep(0.1)
            step += 1
            if step % 10 == 0 and rank == 0:
                print(f"[{time.time() - t0:7.1f}s] step {step}/{args.steps} loss={loss.item():.4f}")
            if step >= args.steps:
                break
    if rank == 0:
        torch.save(model.state_dict(), os.path.join("logs", "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
