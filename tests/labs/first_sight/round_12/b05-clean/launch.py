import argparse
import os

import torch.multiprocessing as mp

import finetune


def entry(rank, nprocs, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(nprocs), LOCAL_RANK=str(rank),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    finetune.main()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--nprocs", type=int, default=2)
    ap.add_argument("--port", type=int, default=29500)
    a = ap.parse_args()
    mp.spawn(entry, args=(a.nprocs, a.port), nprocs=a.nprocs)
