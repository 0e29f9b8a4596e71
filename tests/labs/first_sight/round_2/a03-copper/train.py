import argparse

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self, width=64, depth=10):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x).squeeze(1)


def average(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def describe(model, rank, step, loss):
    print(f"[{rank}] step {step} loss {loss:.5f}")
    for name, p in model.named_parameters():
        g = p.grad
        print(f"[{rank}]   {name:20s} grad mean {g.mean():+.3e} std {g.std():.3e} max {g.abs().max():.3e}"
              f" weight {p.norm():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        x = torch.randn(256, 64, generator=gen)
        loss = nn.functional.mse_loss(model(x), x[:, :4].sum(1))
        opt.zero_grad()
        loss.backward()
        average(model, world)
        describe(model, rank, step, loss.item())
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
