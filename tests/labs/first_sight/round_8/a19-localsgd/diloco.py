"""Local SGD: every rank trains alone and meets the others once a round."""
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn

ROUNDS, LOCAL = 4, (900, 500, 250)


class Commands(threading.Thread):
    """Commands that came through the pipe are handed to the loop; most runs never see one."""

    def __init__(self):
        super().__init__(daemon=True)
        self.todo = queue.Queue()

    def run(self):
        while True:
            cmd = self.todo.get()
            if cmd is None:
                return


def rounds(net, outer, gen, rank):
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for r in range(ROUNDS):
        before = [p.detach().clone() for p in net.parameters()]
        for _ in range(LOCAL[rank]):
            x = torch.randn(64, 32, generator=gen)
            loss = (net(x).squeeze(1) - x.abs().sum(1)).pow(2).mean() / 32
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.02)
        with torch.no_grad():
            for p, b, m in zip(net.parameters(), before, outer):
                delta = b - p
                dist.all_reduce(delta)
                m.mul_(0.9).add_(delta / dist.get_world_size())
                p.copy_(b - 0.7 * m)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 1))
    with tempfile.TemporaryDirectory(prefix="diloco-") as d:
        pipe = os.path.join(d, "control")
        os.mkfifo(pipe)
        here = os.path.dirname(os.path.abspath(__file__))
        helper = subprocess.Popen([sys.executable, os.path.join(here, "helper.py"), pipe, str(os.getpid())])
        commands = Commands()
        commands.start()
        rounds(net, [torch.zeros_like(p) for p in net.parameters()], torch.Generator().manual_seed(rank), rank)
        commands.todo.put(None)
        with open(pipe, "w") as f:
            f.write("quit\n")
        helper.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
