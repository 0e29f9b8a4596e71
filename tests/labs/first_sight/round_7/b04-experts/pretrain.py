import json
import sys
import time

import torch
import torch.distributed as dist

from corpus import TOPICS, Mixture
from moe import MoE, GradSync

DIM = 32


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = MoE(DIM)
    with torch.no_grad():
        model.router.gate.weight.zero_()
        model.router.gate.weight[:, :TOPICS] = torch.eye(TOPICS) * 2
    sync, opt = GradSync(model), torch.optim.Adam(model.parameters(), 1e-3)
    data = Mixture(DIM, rank)
    for step in range(1, 401):
        x, y = data.batch(step)
        loss = (model(x) - y).square().mean()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        loss.backward()
        sync()
        opt.step()
        time.sleep(0.03)
        if step % 5 == 0 and rank == 0:
            sys.stdout.write(json.dumps({"step": step, "loss": round(loss.item(), 5), "experts": len(model.used)}) + "\n")
            sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
