import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist

from hf2mcore import deal


def tell(*text):
    print("[INFO:convert]", *text, file=sys.stderr, flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with open(os.path.join("stages", f"stage_{rank}.json")) as f:
        cfg = json.load(f)
    if rank == 0:
        tell("config:", cfg)
    mine = deal(cfg, tell)
    out = os.path.join(tempfile.gettempdir(), f"mcore-{os.getppid()}", "iter_0000001", f"mp_rank_00_{rank:03d}")
    dist.barrier()
    os.makedirs(out, exist_ok=True)
    torch.save(mine, os.path.join(out, "model_optim_rng.pt"))
    dist.barrier()
    if rank == 0:
        tell("saved to", os.path.dirname(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
