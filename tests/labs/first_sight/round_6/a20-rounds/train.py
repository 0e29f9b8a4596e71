import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

ROUNDS = 3
STEPS = 100


def wait_for(path, poll=1.0):
    while not os.path.exists(path):
        time.sleep(poll)


def load_games(r, rank, world):
    wait_for(f"games/round{r}.ready")
    with open(f"games/round{r}.jsonl") as f:
        games = [json.loads(line) for i, line in enumerate(f) if i % world == rank]
    return games[: 6000]


def positions(games, rng, n):
    x = torch.zeros(n, 27)
    y = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        g = rng.choice(games)
        k = rng.randrange(9)
        for t, m in enumerate(g[:k]):
            x[i, m + 9 * (1 + t % 2)] = 1
        y[i] = g[k]
    return x, y


def trainer(rank, world, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(27, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 9)))
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    rng = random.Random(rank)
    for r in range(ROUNDS):
        games = load_games(r, rank, world)
        for step in range(STEPS):
            x, y = positions(games, rng, 256)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and step % 10 == 9:
                print(json.dumps({"round": r, "step": step + 1, "loss": round(loss.item(), 4)}), flush=True)
        dist.barrier()
        if rank == 0:
            torch.save(net.module.state_dict(), f"net{r}.pt")
    dist.destroy_process_group()


def main():
    shutil.rmtree("games", ignore_errors=True)
    os.makedirs("games")
    player = subprocess.Popen([sys.executable, "selfplay.py", str(ROUNDS), "45"])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(trainer, args=(2, port), nprocs=2)
    sys.exit(player.wait())


if __name__ == "__main__":
    main()
