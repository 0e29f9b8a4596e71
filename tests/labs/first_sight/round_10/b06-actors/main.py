"""Actor-learner over torch.distributed.rpc: rank 0 learns, the others act."""
import argparse
import logging
import os
import sys

import torch
import torch.distributed.rpc as rpc

import actor
import learner


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=600)
    ap.add_argument("--refresh-every", type=int, default=40)
    ap.add_argument("--rpc-threads", type=int, default=2)
    args = ap.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=f"[%(asctime)s r{rank}] %(name)s: %(message)s")
    torch.set_num_threads(1)
    opts = rpc.TensorPipeRpcBackendOptions(num_worker_threads=args.rpc_threads, rpc_timeout=7200)
    name = "learner" if rank == 0 else f"actor{rank}"
    lrn = learner.create(world - 1, args.refresh_every) if rank == 0 else None
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=opts)
    if rank == 0:
        lrn.loop(args.iters * (world - 1))
    else:
        logging.getLogger("actor").info("%s acts", name)
        actor.run(name, rank, args.iters)
    rpc.shutdown()


if __name__ == "__main__":
    main()
