"""Three stages, one process each; activations go up, gradients come down."""
import multiprocessing
import socket
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH, MICRO = 32, 16, 4
ROWS, EPOCHS = 1032, 6


def batches(seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, generator=gen)
    y = x[:, :1] * x[:, 1:2]
    for at in range(0, ROWS, BATCH):
        yield x[at:at + BATCH], y[at:at + BATCH]


class Stage:
    def __init__(self, rank, last):
        torch.manual_seed(rank)
        self.rank, self.up, self.down = rank, rank + 1, rank - 1
        layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh()] + ([nn.Linear(WIDTH, 1)] if last else [])
        self.net = nn.Sequential(*layers)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def receive(self, source):
        tensor = torch.empty(MICRO, WIDTH)
        dist.recv(tensor, source)
        return tensor

    def first(self, x):
        outs = []
        for part in x.split(MICRO):
            outs.append(self.net(part))
            dist.send(outs[-1].detach(), self.up)
        for out in outs:
            out.backward(self.receive(self.up))

    def middle(self, x):
        kept = []
        for _ in x.split(MICRO):
            inp = self.receive(self.down).requires_grad_()
            kept.append((inp, self.net(inp)))
            dist.send(kept[-1][1].detach(), self.up)
        for inp, out in kept:
            out.backward(self.receive(self.up))
            dist.send(inp.grad, self.down)

    def final(self, y):
        kept, total = [], 0.0
        if len(y) == BATCH:  # whole batches only, or the mean is off
            for part in y.split(MICRO):
                kept.append(self.receive(self.down).requires_grad_())
                loss = nn.functional.mse_loss(self.net(kept[-1]), part)
                loss.backward()
                total += loss.item()
            for inp in kept:
                dist.send(inp.grad, self.down)
        return total


def stage_main(rank, world, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    stage = Stage(rank, last=rank == world - 1)
    for epoch in range(EPOCHS):
        total = torch.zeros(1)
        for number, (x, y) in enumerate(batches(epoch)):
            stage.opt.zero_grad()
            if rank == 0:
                stage.first(x)
            elif rank == world - 1:
                total += stage.final(y)
            else:
                stage.middle(x)
            stage.opt.step()
            time.sleep(0.15)
            if rank == world - 1 and number % 16 == 0:
                print(f"stage {rank}: epoch {epoch} batch {number} loss {total.item():.4f}", flush=True)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {total.item():.4f}", flush=True)
    dist.destroy_process_group()


def main(world=3):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ctx = multiprocessing.get_context("spawn")
    stages = [ctx.Process(target=stage_main, args=(r, world, port), name=f"stage-{r}") for r in range(world)]
    for stage in stages:
        stage.start()
    for stage in stages:
        stage.join()


if __name__ == "__main__":
    main()
