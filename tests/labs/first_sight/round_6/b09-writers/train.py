import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from checkpoint import Checkpointer

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Evaluation:
    """Accuracy on random pictures, summed up over all ranks in a group with its own time limit."""

    def __init__(self):
        self.group = dist.new_group(timeout=datetime.timedelta(minutes=45))
        self.gen = torch.Generator().manual_seed(4)

    @torch.no_grad()
    def run(self, model):
        right = torch.zeros(2)
        for _ in range(4):
            x = torch.randn(32, 3, 32, 32, generator=self.gen)
            y = torch.randint(0, 20, (32,), generator=self.gen)
            right += torch.tensor([(model(x).argmax(dim=1) == y).sum().item(), len(y)])
        dist.all_reduce(right, group=self.group)
        return (right[0] / right[1]).item()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--save-every", type=int, default=50)
    p.add_argument("--eval-every", type=int, default=120)
    p.add_argument("--log-every", type=int, default=25)
    p.add_argument("--writers", default="0,1", help="ranks that write the checkpoint")
    return p.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU())
        self.fc = nn.Linear(24 * 7 * 7, 20)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def average_gradients(model):
    world = dist.get_world_size()
    grads = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= world
    for g, f in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
        g.copy_(f)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    saver = Checkpointer("ckpt", [int(w) for w in args.writers.split(",")])
    evaluation = None
    gen = torch.Generator().manual_seed(rank)
    running, t0 = 0.0, time.time()
    for step in range(1, args.steps + 1):
        x = torch.randn(16, 3, 32, 32, generator=gen)
        y = torch.randint(0, 20, (16,), generator=gen)
        time.sleep(0.15)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        average_gradients(model)
        opt.step()
        running += loss.item()
        if step % args.log_every == 0:
            print(f"rank {rank} | step {step:5d} | loss {running / args.log_every:.4f} | "
                  f"{(time.time() - t0) / args.log_every * 1000:.0f} ms", flush=True)
            running, t0 = 0.0, time.time()
        if step % args.save_every == 0:
            saver.save(model, step)
        if step % args.eval_every == 0:
            evaluation = evaluation or Evaluation()
            accuracy = evaluation.run(model)
            if rank == 0:
                print(f"accuracy after step {step}: {accuracy:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
