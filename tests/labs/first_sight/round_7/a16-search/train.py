import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from search import LINES, N, strength


def positions(n, rng):
    boards, moves = [], []
    while len(boards) < n:
        line = rng.choice(LINES)
        board = [rng.choice((0.0, 0.0, -1.0, 1.0)) for _ in range(N * N)]
        gap = rng.choice(line)
        for i in line:
            board[i] = 0.0 if i == gap else 1.0
        boards.append(board)
        moves.append(gap)
    return torch.tensor(boards), torch.tensor(moves)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--play-at", type=int, default=250)
    p.add_argument("--play-seconds", type=float, default=50)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(N * N, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, N * N))
    model = DDP(policy)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    rng = random.Random(rank)
    for step in range(1, args.steps + 1):
        x, y = positions(64, rng)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if step == args.play_at:
            if rank == 0:
                score, games = strength(policy, args.play_seconds)
                print(f"strength {score:.3f} in {games} games", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
