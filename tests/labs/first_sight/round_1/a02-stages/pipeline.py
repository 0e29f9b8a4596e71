"""Three-stage GPipe-style training, one stage per process, plain send/recv."""
import os
import socket
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


@dataclass
class Config:
    stages: int = 3
    n_samples: int = 465
    batch: int = 12
    n_micro: int = 4
    dim: int = 48
    hidden: int = 192
    epochs: int = 4
    lr: float = 1e-3

    @property
    def micro_size(self):
        return self.batch // self.n_micro


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make_data(cfg):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(cfg.n_samples, cfg.dim, generator=g)
    y = x.roll(1, 1) * 0.5 + x.square() * 0.1
    return x, y


def build_stage(stage, cfg):
    torch.manual_seed(100 + stage)
    if stage == 0:
        return nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.SiLU())
    if stage == cfg.stages - 1:
        return nn.Linear(cfg.hidden, cfg.dim)
    return nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU())


class Stage:
    def __init__(self, stage, cfg):
        self.stage, self.cfg = stage, cfg
        self.first, self.last = stage == 0, stage == cfg.stages - 1
        self.net = build_stage(stage, cfg)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)

    def recv_forward(self):
        buf = torch.empty(self.cfg.micro_size, self.cfg.hidden)
        dist.recv(buf, src=self.stage - 1)
        return buf.requires_grad_()

    def recv_backward(self, like):
        buf = torch.empty_like(like)
        dist.recv(buf, src=self.stage + 1)
        return buf

    def step(self, xb, yb):
        cfg = self.cfg
        ins, outs, total = [], [], 0.0
        if self.first:
            for x in xb.chunk(cfg.n_micro):
                out = self.net(x)
                dist.send(out.detach(), dst=self.stage + 1)
                ins.append(None)
                outs.append(out)
        else:
            targets = yb.split(cfg.micro_size)
            for m in range(cfg.n_micro):
                x = self.recv_forward()
                out = self.net(x)
                if self.last:
                    out = nn.functional.mse_loss(out, targets[m]) / cfg.n_micro
                    total += out.item()
                else:
                    dist.send(out.detach(), dst=self.stage + 1)
                ins.append(x)
                outs.append(out)
        for x, out in zip(ins, outs):
            if self.last:
                out.backward()
            else:
                out.backward(self.recv_backward(out))
            if not self.first:
                dist.send(x.grad, dst=self.stage - 1)
        self.opt.step()
        self.opt.zero_grad()
        return total


def worker(stage, cfg, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=stage, world_size=cfg.stages)
    x, y = make_data(cfg)
    st = Stage(stage, cfg)
    it = 0
    for epoch in range(cfg.epochs):
        for lo in range(0, len(x), cfg.batch):
            if st.first:
                time.sleep(0.25)  # augmentation happens here in the full setup
            loss = st.step(x[lo:lo + cfg.batch], y[lo:lo + cfg.batch])
            it += 1
            if st.last:
                print(f"[stage {stage}] it={it:05d} ep={epoch} mse={loss:.5f}", flush=True)
            elif it % 20 == 0:
                print(f"[stage {stage}] {it} iterations", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    cfg = Config()
    mp.spawn(worker, args=(cfg, free_port()), nprocs=cfg.stages)
