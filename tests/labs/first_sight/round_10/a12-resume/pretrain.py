import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import ckpt


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.ln1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab=128, dim=64, depth=2, ctx=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Parameter(torch.zeros(ctx, dim))
        self.blocks = nn.Sequential(*[Block(dim, 4) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids) + self.pos[: ids.shape[1]]))


def sample(n, gen):
    """Markov-like sequences: next = a * cur + b mod 127."""
    a = torch.randint(1, 5, (n, 1), generator=gen)
    x = torch.randint(0, 127, (n, 1), generator=gen)
    cols = [x]
    for _ in range(48):
        cols.append((cols[-1] * a + 17) % 127)
    seq = torch.cat(cols, 1)
    return seq[:, :-1], seq[:, 1:]


def evaluate(model, world):
    gen = torch.Generator().manual_seed(4242)
    with torch.no_grad():
        x, y = sample(64, gen)
        mine = F.cross_entropy(model(x).flatten(0, 1), y.flatten()).view(1)
    both = [torch.empty(1) for _ in range(world)]
    dist.all_gather(both, mine)
    return torch.cat(both).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--name", default="continued")
    p.add_argument("--resume-from", default="base")
    p.add_argument("--total-steps", type=int, default=3000)
    p.add_argument("--eval-interval", type=int, default=250)
    p.add_argument("--save-interval", type=int, default=500)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(levelname).1s %(name)s %(message)s")
    log = logging.getLogger("pretrain")
    torch.manual_seed(0)
    net = GPT()
    opt = torch.optim.AdamW(net.parameters(), 3e-4)
    gen, step = torch.Generator().manual_seed(rank), 0
    state = ckpt.latest(a.resume_from, rank)
    if state:
        net.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        gen.set_state(state["gen"])
        step = state["step"]
    model = DistributedDataParallel(net)
    log.info("step %d of %d, %d ranks", step, a.total_steps, world)
    while step < a.total_steps:
        x, y = sample(8, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 20 == 0:
            log.info("%6d | %.4f", step, loss.item())
        if step % a.eval_interval == 0:
            log.info("%6d | validation %.4f", step, evaluate(net, world))
        if step % a.save_interval == 0:
            ckpt.save(a.name, rank, {"step": step, "model": net.state_dict(),
                                    "opt": opt.state_dict(), "gen": gen.get_state()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
