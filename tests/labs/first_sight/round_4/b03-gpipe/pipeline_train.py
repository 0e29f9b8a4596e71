import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from p2p import recv_tensor, send_tensor

NUM_MICRO = 4
BATCH = 32
N_TRAIN = 32 * 40 + 9
WIDTH = 96


def make_data():
    g = torch.Generator().manual_seed(5)
    x = torch.randn(N_TRAIN, WIDTH, generator=g)
    return x, x.roll(1, dims=1).tanh()


class FirstStage:
    def __init__(self, nxt, x):
        self.nxt, self.x = nxt, x
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def run(self, lo, hi):
        time.sleep(0.25)                   # augmentation
        outs = []
        for mb in self.x[lo:hi].chunk(NUM_MICRO):
            out = self.net(mb)
            send_tensor(out, self.nxt)
            outs.append(out)
        for out in outs:
            out.backward(recv_tensor(self.nxt))


class MiddleStage:
    def __init__(self, prev, nxt):
        self.prev, self.nxt = prev, nxt
        self.net = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())

    def run(self, lo, hi):
        pairs = []
        for _ in range(NUM_MICRO):
            inp = recv_tensor(self.prev).requires_grad_()
            out = self.net(inp)
            send_tensor(out, self.nxt)
            pairs.append((inp, out))
        for inp, out in pairs:
            out.backward(recv_tensor(self.nxt))
            send_tensor(inp.grad, self.prev)


class LastStage:
    def __init__(self, prev, y):
        self.prev, self.y = prev, y
        self.net = nn.Linear(WIDTH, WIDTH)
        self.loss = 0.0

    def run(self, lo, hi):
        targets = list(self.y[lo:hi].chunk(NUM_MICRO))
        done, total = [], 0.0
        for m in range(NUM_MICRO):
            inp = recv_tensor(self.prev).requires_grad_()
            loss = nn.functional.mse_loss(self.net(inp), targets[m]) / NUM_MICRO
            loss.backward()
            total += loss.item()
            done.append(inp.grad)
        for g in done:
            send_tensor(g, self.prev)
        self.loss = total


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO,
                        format=f"%(asctime)s | stage {rank} | %(levelname)-7s | %(message)s",
                        datefmt="%m-%d %H:%M:%S")
    log = logging.getLogger("pipe")
    torch.manual_seed(rank)
    x, y = make_data()
    stage = (FirstStage(1, x), MiddleStage(0, 2), LastStage(1, y))[rank]
    opt = torch.optim.Adam(stage.net.parameters(), lr=1e-3)
    log.info("stage ready, %d parameters", sum(p.numel() for p in stage.net.parameters()))
    per_epoch = -(-N_TRAIN // BATCH)
    for epoch in range(10):
        for b in range(per_epoch):
            lo, hi = b * BATCH, min((b + 1) * BATCH, N_TRAIN)
            opt.zero_grad()
            stage.run(lo, hi)
            opt.step()
            if rank == 2 and b % 8 == 0:
                log.info("epoch %d  batch %d/%d  loss %.5f", epoch, b, per_epoch, stage.loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
