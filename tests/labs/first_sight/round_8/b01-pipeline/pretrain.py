import argparse
import itertools
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from schedule import Chain, one_f_one_b


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=192)
    p.add_argument("--seq", type=int, default=64)
    p.add_argument("--micro-batch-size", type=int, default=4)
    p.add_argument("--train-iters", type=int, default=400)
    # start:increment:iterations, as in --rampup-batch-size
    p.add_argument("--rampup", default="1:1:18")
    p.add_argument("--max-microbatches", type=int, default=6)
    p.add_argument("--placement", default="0,2,1", help="rank of each stage, by host distance")
    p.add_argument("--log-interval", type=int, default=5)
    return p.parse_args()


def microbatches_at(args, it):
    start, inc, every = map(int, args.rampup.split(":"))
    return min(start + inc * (it // every), args.max_microbatches)


def stream(args):
    gen = torch.Generator().manual_seed(11)
    while True:
        time.sleep(0.05)
        yield torch.randn(args.micro_batch_size, args.seq, args.hidden, generator=gen)


def main():
    args = parse()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    chain = Chain([int(r) for r in args.placement.split(",")])
    block = nn.Sequential(*itertools.chain.from_iterable(
        (nn.Linear(args.hidden, args.hidden), nn.GELU()) for _ in range(4)))
    opt = torch.optim.AdamW(block.parameters(), lr=3e-4)
    shape = (args.micro_batch_size, args.seq, args.hidden)
    feed = stream(args)
    tic = time.time()
    for it in range(args.train_iters):
        n = microbatches_at(args, it)
        opt.zero_grad()
        loss = one_f_one_b(chain, block, feed, lambda y: y.pow(2).mean(), shape, n)
        norm = torch.nn.utils.clip_grad_norm_(block.parameters(), 1.0)
        opt.step()
        if (it + 1) % args.log_interval == 0 and chain.next is None:
            ms = (time.time() - tic) / args.log_interval * 1000
            tic = time.time()
            print(f" iteration {it + 1:8d}/{args.train_iters:8d} | elapsed time per iteration (ms): {ms:.1f} | "
                  f"global batch size: {n * args.micro_batch_size:5d} | lm loss: {loss:.6E} | grad norm: {norm:.3f} |",
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
