"""Best-of-n distillation: sample n answers to each prompt, keep the best, train on them."""
import argparse
import logging
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as tmp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import data
from pool import RolloutPool


class Student(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.tok = nn.Embedding(512, dim)
        enc = nn.TransformerEncoderLayer(dim, 4, 256, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(enc, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 512)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.body(self.tok(x), mask=mask, is_causal=True))


def quality(ids):
    tail = ids[-16:]
    return len(set(tail)) / 16 - 0.01 * tail.count(tail[-1])


def worker(rank, world, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s | %(levelname)s | %(message)s")
    log = logging.getLogger("bon")
    torch.manual_seed(0)
    model = DDP(Student())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prompts = data.load(args.prompts) if rank == 0 else None
    pool = RolloutPool() if rank == 0 else None
    log.info("starting: %d steps, best of %d", args.steps, args.n)
    cursor = 0
    for step in range(1, args.steps + 1):
        box = [None]
        if rank == 0:
            if step % 5 == 1:
                pool.publish(model.module.out.bias.detach().numpy())
            items = prompts[cursor:cursor + 8]
            cursor += 8
            best = []
            for r in pool.collect(step, items, args.n):
                best.append(max(r["outs"], key=quality)[-48:])
            box = [best]
        dist.broadcast_object_list(box, src=0)
        batch = [b + [0] * (64 - len(b)) for b in box[0]][rank::world]
        x = torch.tensor(batch)
        logits = model(x)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 512), x[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            dist.all_reduce(loss.detach())
            log.info("step %d/%d | loss %.4f | prompts seen %d", step, args.steps, loss.item(), cursor)
    if pool:
        pool.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--prompts", default="prompts.jsonl")
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("-n", type=int, default=4)
    args = ap.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tmp.spawn(worker, args=(2, 31403, args), nprocs=2)
