import argparse
import json
import time
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from hybrid import Engine

warnings.filterwarnings("ignore")


class LM(nn.Module):
    def __init__(self, vocab=128, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 512, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        m = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.body(self.emb(x), mask=m, is_causal=True))


def inner_epochs(model, opt, ids, adv, seconds):
    """Trains on the batch until its time is up; the main rank's clock counts for all."""
    t0, n = time.time(), 0
    go = torch.ones(1)
    while True:
        dist.broadcast(go, 0)
        if not go.item():
            return n
        lp = F.log_softmax(model(ids[:, :-1]), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)[:, 7:]
        loss = -(lp * adv[:, None]).mean() + 0.01 * lp.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        n += 1
        time.sleep(0.05)
        go = torch.tensor([float(time.time() - t0 < seconds)])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=float, default=38)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    engine, model = Engine(rank), DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    gen = torch.Generator().manual_seed(rank)
    for rnd in range(1, args.rounds + 1):
        engine.wake()
        prompts = torch.randint(2, 128, (32 + 16 * rank, 8), generator=gen).tolist()
        ids = torch.tensor(engine.generate(prompts))[:32]
        engine.sleep()
        dist.barrier()
        r = (ids[:, 8:] % 2 == 0).float().mean(1)
        n = inner_epochs(model, opt, ids, r - r.mean(), args.seconds)
        if rank == 0:
            print(json.dumps({"round": rnd, "inner": n, "reward": round(r.mean().item(), 3)}), flush=True)
    engine.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
