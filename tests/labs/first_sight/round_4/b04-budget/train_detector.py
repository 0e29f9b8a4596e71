import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from budget import TimeBudget

RANK = 0
SHARDS = ["tiles_000.idx", "tiles_001.idx", "tiles_002.idx"]
ENTRIES = {"tiles_000.idx": 5200, "tiles_001.idx": 700, "tiles_002.idx": 4800}


def say(msg):
    print(f"{time.strftime('%H:%M:%S')} r{RANK}> {msg}", flush=True)


def load_index(shard):
    n = ENTRIES[shard]
    for _ in range(n // 100):
        time.sleep(0.12)          # 100 footers per request
    g = torch.Generator().manual_seed(n)
    return torch.randn(n, 24, generator=g)


def main():
    global RANK
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-seconds", type=float, default=30)
    ap.add_argument("--max-steps", type=int, default=100000)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    RANK = dist.get_rank()
    host_group = dist.new_group(backend="gloo")     # python objects go over the host network

    tiles = load_index(SHARDS[RANK])
    budget = TimeBudget(args.max_seconds)
    say(f"{len(tiles)} tiles")

    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    seen, running = 0, 0.0
    for step in range(1, args.max_steps + 1):
        if budget.exhausted():
            say(f"time budget used up after {step - 1} steps, finishing")
            break
        idx = torch.randint(0, len(tiles), (16,))
        x = tiles[idx]
        time.sleep(0.1)             # tile decoding
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(x)
        running = 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0:
            say(f"step {step:5d}  avg {running:.4f}  seen {seen}")

    summary = {"rank": RANK, "seen": seen, "avg": running}
    everyone = [None] * dist.get_world_size() if RANK == 0 else None
    dist.gather_object(summary, everyone, dst=0, group=host_group)
    if RANK == 0:
        say(f"summary {everyone}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
