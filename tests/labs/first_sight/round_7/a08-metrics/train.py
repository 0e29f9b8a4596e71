import json
import os

import torch
import torch.distributed as dist
from torch import nn

from evaluation import Evaluator


def data(n, g):
    x = torch.randn(n, 10, generator=g)
    return x, (x[:, :5].prod(1, keepdim=True) + x[:, 5:].sum(1, keepdim=True)).clamp(-4, 4)


def average_gradients(net):
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    i = 0
    for p in net.parameters():
        p.grad.copy_(flat[i:i + p.numel()].view_as(p))
        i += p.numel()


def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.json")) as f:
        cfg = json.load(f)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    opt = torch.optim.Adam(net.parameters(), cfg["lr"])
    evaluate = Evaluator(cfg["metrics"])
    g = torch.Generator().manual_seed(50 + rank)
    held_out = data(400, g)
    for epoch in range(cfg["epochs"]):
        for step in range(cfg["steps_per_epoch"]):
            x, y = data(cfg["batch"], g)
            loss = nn.functional.huber_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            average_gradients(net)
            opt.step()
            if step % 30 == 0:
                print(f"rank{rank} epoch={epoch} step={step} loss={loss.item():.4f}", flush=True)
        result = evaluate(net, *held_out)
        if rank == 0:
            print("eval " + " ".join(f"{k}={v:.4f}" for k, v in sorted(result.items()) if isinstance(v, float)),
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
