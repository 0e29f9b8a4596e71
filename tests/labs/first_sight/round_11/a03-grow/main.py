import argparse
import logging
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from state import TrainState

log = logging.getLogger("exp7")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--total", type=int, default=120)
    p.add_argument("--stop-at", type=int)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--save-every", type=int, default=20)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(name)s r" + str(rank) + " %(message)s")
    torch.manual_seed(17 + rank)
    random.seed(17 + rank)
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    state = TrainState(args.out, rank)
    if args.resume and state.load(net, opt):
        log.info("resumed at step %d", state.step)
    model = DDP(net)
    losses = []
    last = args.stop_at or args.total
    while state.step < last:
        x = torch.randn(64, 64)
        y = x[:, :8].sum(1, keepdim=True).sin()
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        state.step += 1
        losses.append(loss.item())
        time.sleep(0.05 + 0.02 * random.random())
        if state.step % 15 == 0:
            log.info("step %d/%d loss %.4f", state.step, args.total, sum(losses[-15:]) / len(losses[-15:]))
        if state.step % args.save_every == 0:
            state.save(net, opt)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": rank, "mean": sum(losses) / len(losses)})
    log.info("done: %s", gathered)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
