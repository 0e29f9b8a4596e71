import argparse
import os
import time

import torch
import torch.distributed.rpc as rpc
import torch.nn as nn

import ps

TRAINERS = 2


def options(port):
    return rpc.TensorPipeRpcBackendOptions(num_worker_threads=2, rpc_timeout=3600,
                                           init_method=f"tcp://127.0.0.1:{port}")


def batch(gen, w):
    x = torch.randn(128, 30, generator=gen)
    return x, (x @ w).argmax(dim=1)


def train(rank, steps, warmup):
    name = f"trainer{rank}"
    model = ps.build()
    gen = torch.Generator().manual_seed(rank)
    w = torch.randn(30, 5, generator=torch.Generator().manual_seed(42))
    ahead = None
    for step in range(steps):
        if ahead is not None:
            version, weights = ahead.wait()
        else:
            version, weights = rpc.rpc_sync("ps", ps.pull, args=(step,))
        with torch.no_grad():
            for p, v in zip(model.parameters(), weights):
                p.copy_(v)
        if step >= warmup:
            # ask for the next weights now, they come while this batch is worked on
            ahead = rpc.rpc_async("ps", ps.pull, args=(step + 1,))
        x, y = batch(gen, w)
        loss = nn.functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        time.sleep(0.2)
        rpc.rpc_sync("ps", ps.push, args=(name, version, list(grads)))
        if step % 10 == 0:
            print(f"{name} step {step} version {version} loss {loss.item():.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rank", type=int, required=True)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--steps", type=int, default=1500)
    p.add_argument("--warmup", type=int, default=50)
    args = p.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    name = "ps" if args.rank == 0 else f"trainer{args.rank}"
    rpc.init_rpc(name, rank=args.rank, world_size=TRAINERS + 1, rpc_backend_options=options(args.port))
    if args.rank > 0:
        rpc.rpc_sync("ps", ps.serve, args=(TRAINERS,))
        train(args.rank, args.steps, args.warmup)
    rpc.shutdown()


if __name__ == "__main__":
    main()
