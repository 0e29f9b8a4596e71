import sys

import torch
import torch.distributed as dist
from torch import nn

from checkpoint import Checkpointer
from config import Config


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp = nn.Conv1d(1, width, 9, padding=4)
        self.mid = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2, groups=8) for _ in range(4))
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.mid:
            x = x + torch.tanh(layer(x))
        return self.out(x)


def signal_batch(gen, n=12, length=512):
    t = torch.linspace(0, 1, length)
    freq = torch.rand(n, 1, 1, generator=gen) * 40 + 2
    clean = torch.sin(6.2832 * freq * t)
    return clean + 0.3 * torch.randn(n, 1, length, generator=gen), clean


def main():
    cfg = Config.parse(sys.argv[1:])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Mixer(cfg.width))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    saver = Checkpointer(cfg)
    gen = torch.Generator().manual_seed(cfg.rank)
    for step in range(1, cfg.steps + 1):
        noisy, clean = signal_batch(gen)
        loss = nn.functional.l1_loss(model(noisy), clean)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if cfg.main and step % 5 == 0:
            print(f"| {cfg.name} | step {step:>5} | l1 {loss.item():.4f} | gnorm {norm:.2f} |", flush=True)
        if step % cfg.ckpt_every == 0:
            folder = saver.save(step, model.module, opt)
            if cfg.main:
                print(f"| {cfg.name} | wrote {folder.name}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
