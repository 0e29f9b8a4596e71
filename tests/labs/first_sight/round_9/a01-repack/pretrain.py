"""Two-stage language model pre-training: short sequences first, then long ones."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from lm.corpus import ByteTokenizer, documents
from lm.packing import PackedDataset, pack_config


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=48, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, layers, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def run_stage(stage, model, opt, data, steps, batch, rank, world, first):
    gen = torch.Generator().manual_seed(17 + stage)
    began = time.time()
    for i in range(steps):
        idx = torch.randint(0, len(data), (batch * world,), generator=gen)[rank::world]
        rows = torch.stack([data[int(j)] for j in idx])
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        time.sleep(0.12)
        step = first + i + 1
        if step % 10 == 0:
            print(f"[{rank}] stage {stage} step {step:4d} loss {loss.item():.4f} "
                  f"{(time.time() - began) / (i + 1) * 1000:.0f} ms/step", flush=True)
    return first + steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", default="cache")
    ap.add_argument("--stage-steps", type=int, nargs=2, default=[60, 400])
    ap.add_argument("--stage-len", type=int, nargs=2, default=[32, 96])
    ap.add_argument("--batch", type=int, default=4)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    tok = ByteTokenizer()
    docs = documents(400)
    model = DDP(TinyLM(tok.vocab_size))
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    os.makedirs(args.cache, exist_ok=True)
    step = 0
    for stage, (steps, length) in enumerate(zip(args.stage_steps, args.stage_len)):
        if stage == 0:
            data = PackedDataset.in_memory(docs, tok, length)
        else:
            cfg = pack_config("minipile", length, tok)
            data = PackedDataset.cached(args.cache, cfg, docs, tok, length, builder=(rank == 0))
        print(f"[{rank}] stage {stage}: {len(data)} rows of {length}", flush=True)
        step = run_stage(stage, model, opt, data, steps, args.batch, rank, world, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
