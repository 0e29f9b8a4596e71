import os
import sys

import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

from ps import ParameterServer
from trainer import fit

TRAINERS = 2


def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    world = TRAINERS + 1
    opts = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, rpc_timeout=3600)
    name = "ps" if rank == 0 else f"trainer{rank - 1}"
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=opts)
    if rank == 0:
        ref = rpc.RRef(ParameterServer(TRAINERS))
        jobs = [rpc.rpc_async(f"trainer{i}", fit, args=(ref, i), timeout=0) for i in range(TRAINERS)]
        print("skipped batches:", [j.wait() for j in jobs], flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=TRAINERS + 1)
