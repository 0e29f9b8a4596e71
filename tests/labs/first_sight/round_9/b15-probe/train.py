import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Ranker, pairs

HERE = os.path.dirname(os.path.abspath(__file__))


class Evaluator:
    """Evaluates in a process of its own, so that its memory is given back; keeps the output for the report."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def __call__(self, net, step, queries):
        weights, summary = (os.path.join(self.folder, f"{step}.{e}") for e in ("pt", "json"))
        torch.save(net.state_dict(), weights)
        proc = subprocess.Popen([sys.executable, os.path.join(HERE, "evaluate.py"), weights, "--queries", str(queries),
                                 "--summary", summary], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if proc.wait() != 0:
            print(proc.stdout.read().decode(), file=sys.stderr)
            return float("nan")
        with open(os.path.join(self.folder, f"{step}.txt"), "wb") as f:
            f.write(proc.stdout.read())
        os.unlink(weights)
        return json.load(open(summary))["accuracy"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ddp = DDP(Ranker())
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    evaluate = Evaluator(f"/tmp/probe-{os.getppid()}") if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    clock = time.time()
    for step in range(1, 1201):
        q, d, y = pairs(256, g)
        loss = binary_cross_entropy_with_logits(ddp(q, d), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            if step % 20 == 0:
                print(f"{step} loss={loss.item():.4f} {20 / (time.time() - clock):.1f} steps/s", flush=True)
                clock = time.time()
            if step % 60 == 0:
                full = step % 120 == 0              # a quick look in between
                acc = evaluate(ddp.module, step, 4000 if full else 400)
                print(f"{step} {'full' if full else 'quick'} accuracy={acc:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
