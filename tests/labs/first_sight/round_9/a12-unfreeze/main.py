import csv
import sys
import time

import torch
import torch.distributed as dist

from data import Site
from trainer import Trainer


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(4)
    t = Trainer(Site(rank))
    out = csv.writer(sys.stdout)
    for step in range(1, 3001):
        loss = t.step()
        time.sleep(0.12)
        if step % 10 == 0:
            val = t.validate()
            out.writerow(["rank", rank, "step", step, "loss", f"{loss:.4f}", "val", f"{val:.4f}",
                          "lr", t.opt.param_groups[0]["lr"]])
            sys.stdout.flush()
            if t.maybe_unfreeze():
                out.writerow(["rank", rank, "step", step, "backbone trains now"])
                sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
