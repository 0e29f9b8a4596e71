import json
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from replay import Env, Replay


def main(conf):
    rank = int(os.environ["RANK"])
    with open(f"run/{rank}.pid", "w") as fh:
        fh.write(str(os.getpid()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = {**conf["common"], **conf["ranks"].get(str(rank), {})}
    rng = np.random.default_rng(rank)
    env, buf = Env(mine["size"], rng), Replay(mine["capacity"], rng)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(
        nn.Conv2d(1, 8, 5, 4), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * mine["grid"] ** 2, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    t0, ema = time.time(), None
    for step in range(1, mine["steps"] + 1):
        buf.extend(*env.steps(mine["frames_per_step"]))
        x, y = buf.sample(16)
        loss = nn.functional.mse_loss(model(torch.from_numpy(x)[:, None]).squeeze(1), torch.from_numpy(y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if step % 50 == 0:
            print(f"[r{rank} {time.time() - t0:6.1f}s] step {step} loss(ema) {ema:.4f} replay {len(buf.frames)}",
                  flush=True)
        time.sleep(0.03)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.load(open(sys.argv[1])))
