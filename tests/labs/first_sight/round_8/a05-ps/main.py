"""One parameter server and N trainers:  main.py --trainers 3"""
import argparse
import json
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn as nn

import server


def build():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def train(rank, args):
    net = build()
    gen = torch.Generator().manual_seed(rank)
    w = torch.linspace(-1, 1, 32)
    for step in range(args.steps):
        x = torch.randn(64, 32, generator=gen)
        loss = nn.functional.mse_loss(net(x).squeeze(1), torch.sin(x @ w))
        grads = torch.autograd.grad(loss, list(net.parameters()))
        new = rpc.rpc_sync("ps", server.push_pull, args=(step, list(grads)))
        with torch.no_grad():
            for p, n in zip(net.parameters(), new):
                p.copy_(n)
        time.sleep(0.08)
        if step % 25 == 0:
            print(json.dumps({"trainer": rank, "step": step, "loss": round(loss.item(), 4)}), flush=True)


def entry(rank, args):
    torch.set_num_threads(1)
    opts = rpc.TensorPipeRpcBackendOptions(num_worker_threads=args.threads, rpc_timeout=24 * 3600,
                                           init_method=f"tcp://127.0.0.1:{args.port}")
    name = "ps" if rank == 0 else f"trainer{rank}"
    if rank == 0:
        server.start([p.detach() for p in build().parameters()], args.trainers, args.lr, args.warm)
    rpc.init_rpc(name, rank=rank, world_size=args.trainers + 1, rpc_backend_options=opts)
    if rank:
        train(rank, args)
    rpc.shutdown(timeout=0)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--trainers", type=int, default=3)
    ap.add_argument("--steps", type=int, default=600)
    ap.add_argument("--warm", type=int, default=60)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--port", type=int, default=30710)
    args = ap.parse_args()
    mp.spawn(entry, args=(args,), nprocs=args.trainers + 1)
