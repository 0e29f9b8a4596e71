import os

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    w = torch.zeros(64, requires_grad=True)
    for step in range(300):
        x = torch.randn(256, 64)
        y = x.sum(1) + 0.1 * torch.randn(256)
        loss = (x @ w - y).square().mean()
        (grad,) = torch.autograd.grad(loss, w)
        dist.all_reduce(grad)
        with torch.no_grad():
            w -= 0.05 * grad / dist.get_world_size()
        if step % 25 == 0 and rank == 0:
            print(f"[{os.environ['GROUP_RANK']}:{rank}] {step} {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
