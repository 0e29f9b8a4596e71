import argparse
import concurrent.futures as cf
import multiprocessing as mp
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from vocab import Vocab, make_docs

VOCAB = Vocab(2000)


def encode(doc):
    return VOCAB.encode(doc)


def tokenize(docs, workers):
    with cf.ProcessPoolExecutor(workers, mp_context=mp.get_context("fork")) as pool:
        return list(pool.map(encode, docs, chunksize=16))


def shard(rank, epoch):
    # the second half of the crawl is in another language from its second part on
    base = 5000 if rank == 1 and epoch >= 1 else 0
    return make_docs(epoch * 100 + rank, 280, base)


def batches(ids, size=32, length=64):
    flat = torch.tensor([t for doc in ids for t in doc])
    rows = flat[: len(flat) // length * length].view(-1, length)
    for i in range(0, len(rows) - size + 1, size):
        yield rows[i : i + size]


class LM(nn.Module):
    def __init__(self, vocab=2000, dim=192):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=30)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    VOCAB.fit(make_docs(7, 400, 0))
    model = DDP(LM())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(args.epochs):
        docs = shard(rank, epoch)
        ids = tokenize(docs, args.workers)
        unk = sum(d.count(0) for d in ids) / sum(len(d) for d in ids)
        total, t0 = 0.0, time.time()
        for x in batches(ids):
            logits = model(x[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            total = loss.item()
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {total:.4f}", flush=True)
        print(f"[rank {rank}] epoch {epoch} done in {time.time() - t0:.1f}s, unk {unk:.1%}", flush=True)
        if unk > 0.05:
            threading.Thread(target=VOCAB.rebuild, args=(docs,), daemon=True).start()
        torch.save(model.module.state_dict(), f"last-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
