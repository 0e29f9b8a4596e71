import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F

from vocab import corpus, get_tokenizer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--iters", type=int, default=2000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    if rank == 0:
        print("world size", world, flush=True)

    tok = get_tokenizer(args.vocab)
    ids = torch.tensor([i for line in corpus() for i in tok.encode(line).ids])
    emb = torch.nn.Embedding(tok.get_vocab_size(), 64)
    out = torch.nn.Linear(64 * 8, tok.get_vocab_size())
    params = [*emb.parameters(), *out.parameters()]
    for p in params:
        dist.broadcast(p.data, 0)
    opt = torch.optim.Adam(params, lr=3e-3)
    for it in range(args.iters):
        at = [random.randrange(len(ids) - 9) for _ in range(32)]
        x = torch.stack([ids[a:a + 8] for a in at])
        y = torch.stack([ids[a + 8] for a in at])
        loss = F.cross_entropy(out(emb(x).flatten(1)), y)
        opt.zero_grad()
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
        opt.step()
        if it % 50 == 0 and rank == 0:
            print(f"iter {it}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
