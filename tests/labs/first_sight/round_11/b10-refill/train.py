import argparse
import multiprocessing
import os
import signal

import cleaning
import source


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--parts", type=int, default=40)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    signal.signal(signal.SIGALRM, cleaning.give_up)
    # spawn: torch does not like forks
    pool = multiprocessing.get_context("spawn").Pool(args.workers)

    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(997, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 997))
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    for part in range(args.parts):
        ids = [i for doc in pool.map(cleaning.clean, source.documents(rank, part), chunksize=8) for i in doc]
        blocks = torch.tensor(ids[:len(ids) // 16 * 16]).view(-1, 16)
        total = 0.0
        steps = 40
        for s in range(steps):
            x = blocks[(s * 8) % (len(blocks) - 8):][:8]
            loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if rank == 0:
            print(f"part {part + 1}/{args.parts}  blocks {len(blocks)}  loss {total / steps:.4f}  pid {os.getpid()}",
                  flush=True)
    pool.close()
    pool.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
