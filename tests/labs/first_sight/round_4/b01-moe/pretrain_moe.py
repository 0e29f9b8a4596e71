import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from expert_exchange import ExpertExchange
from packed_reader import PackedReader

VOCAB, DIM = 256, 48


class MoELM(torch.nn.Module):
    def __init__(self, ep_group):
        super().__init__()
        self.emb = torch.nn.Embedding(VOCAB, DIM)
        self.mix = torch.nn.GRU(DIM, DIM, batch_first=True)
        self.moe = ExpertExchange(DIM, ep_group)
        self.head = torch.nn.Linear(DIM, VOCAB)

    def forward(self, ids, labels):
        h, _ = self.mix(self.emb(ids))
        keep = labels != -100
        y = self.moe(h[keep])
        loss = F.cross_entropy(self.head(y), labels[keep], reduction="sum")
        return loss / keep.sum().clamp(min=1)


def reduce_dense_grads(model, world):
    for p in model.parameters():
        if getattr(p, "is_expert", False):
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=600)
    ap.add_argument("--log-interval", type=int, default=10)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    ep_group = dist.new_group(list(range(world)))
    model = MoELM(ep_group)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    reader = PackedReader(rank, world, seq_len=64, vocab=VOCAB)
    t0 = time.time()
    for it in range(1, args.iters + 1):
        ids, labels = reader.next_batch(4)
        loss = model(ids, labels)
        opt.zero_grad()
        if loss.requires_grad:
            loss.backward()
        reduce_dense_grads(model, world)
        opt.step()
        if rank == 0 and it % args.log_interval == 0:
            print(json.dumps({"iter": it, "lm_loss": round(loss.item(), 4),
                              "elapsed_s": round(time.time() - t0, 1)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
