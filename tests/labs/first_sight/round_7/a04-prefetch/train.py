import argparse
import json
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feed import Feed


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--steps", type=int, default=5000)
    p.add_argument("--out", default=None)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    out = args.out or tempfile.mkdtemp(prefix=f"rec-{rank}-")
    logging.basicConfig(filename=os.path.join(out, f"rank{rank}.log"), level=logging.INFO,
                        format="%(asctime)s %(name)s %(levelname)s %(message)s")
    feed = Feed(os.path.join(args.data, f"train-{rank}.rec"), args.batch)
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 10)))
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    seen, right, begun = 0, 0, time.time()
    for step in range(1, args.steps + 1):
        x, y = next(feed)
        out_ = net(x)
        loss = nn.functional.cross_entropy(out_, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(y)
        right += (out_.argmax(1) == y).sum().item()
        if step % 20 == 0:
            logging.info("step %d loss %.4f", step, loss.item())
            if rank == 0:
                print(json.dumps({"step": step, "loss": round(loss.item(), 4), "acc": round(right / seen, 3),
                                  "samples_per_s": round(seen / (time.time() - begun), 1)}), flush=True)
            seen, right, begun = 0, 0, time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
