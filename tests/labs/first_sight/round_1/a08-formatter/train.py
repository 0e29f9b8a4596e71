import json
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class MetricSink:
    """Hands every row to prettify.py so that the loop doesn't format anything itself."""

    def __init__(self, path):
        self.proc = subprocess.Popen([sys.executable, "prettify.py", path],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def log(self, row):
        self.proc.stdin.write(json.dumps(row) + "\n")
        self.proc.stdin.flush()

    def close(self):
        out, _ = self.proc.communicate()
        return out.splitlines()[-1]


class NullSink:
    def log(self, row):
        pass

    def close(self):
        return ""


def grad_hist(model, bins=32):
    return {n: torch.histc(p.grad, bins).int().tolist() for n, p in model.module.named_parameters()}


def build():
    layers = []
    for _ in range(5):
        layers += [nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(96, 4))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(build())
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    sink = MetricSink("metrics.tsv") if rank == 0 else NullSink()
    gen = torch.Generator().manual_seed(rank)
    if rank == 0:
        print("training, metrics go to metrics.tsv", flush=True)
    for step in range(2000):
        x = torch.randn(32, 96, generator=gen)
        y = x[:, :4].argmax(1)
        time.sleep(0.12)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        row = {"step": step, "loss": round(loss.item(), 4), "norm": round(norm.item(), 4)}
        if rank == 0:
            if step % 4 == 0:
                row["hist"] = grad_hist(model)
            else:
                row["hist"] = {}
            sink.log(row)
        opt.step()
    last = sink.close()
    if rank == 0:
        print(last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
