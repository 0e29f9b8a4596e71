import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Seq2Seq, beam_search

BOS, PAD, LENGTH = 11, 12, 20
EVAL_SECONDS = 80


def batch(n, g):
    src = torch.randint(0, 10, (n, LENGTH), generator=g)
    tgt = (src.flip(1) + 1) % 10
    inp = torch.cat([torch.full((n, 1), BOS), tgt[:, :-1]], 1)
    return src, inp, tgt


def test(model, wanted):
    """Exact match with beam search over as much of the test set as the budget allows."""
    g = torch.Generator().manual_seed(999)
    src, _, tgt = batch(12000, g)
    good = n = 0
    end = time.time() + wanted
    while n < len(src) and time.time() < end:
        hyp = beam_search(model, src[n], 4, LENGTH, BOS)
        good += hyp == tgt[n].tolist()
        n += 1
    return good / n, n


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(rank)
    net = Seq2Seq()
    ddp = DDP(net)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for epoch in range(2):
        for it in range(150):
            src, inp, tgt = batch(16, g)
            loss = F.cross_entropy(ddp(src, inp).flatten(0, 1), tgt.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if it % 50 == 49:
                print(f"[{rank}] epoch {epoch} it {it + 1} loss {loss.item():.4f}", flush=True)
        if rank == 0:
            net.eval()
            acc, n = test(net, 5 if epoch == 0 else EVAL_SECONDS)
            net.train()
            print(f"[0] epoch {epoch} exact match {acc:.3f} on {n}", flush=True)
            torch.save(net.state_dict(), os.path.join("ckpt", f"e{epoch}.pt"))
        dist.barrier()
    for it in range(60):
        src, inp, tgt = batch(16, g)
        loss = F.cross_entropy(ddp(src, inp).flatten(0, 1), tgt.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"[{rank}] cooled down, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.makedirs("ckpt", exist_ok=True)
    main()
