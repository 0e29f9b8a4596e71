import argparse

import torch
import torch.distributed as dist
from torch import nn

from reward_client import RewardModel

ap = argparse.ArgumentParser()
ap.add_argument("--port", type=int, required=True)
ap.add_argument("--sft-steps", type=int, default=200)
ap.add_argument("--rl-steps", type=int, default=2000)
args = ap.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
policy = nn.GRU(32, 96, batch_first=True)
emb, out = nn.Embedding(50, 32), nn.Linear(96, 50)
params = [*policy.parameters(), *emb.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, 1e-3)
reward_model = RewardModel(args.port)
gen = torch.Generator().manual_seed(rank)


def logits(x):
    return out(policy(emb(x))[0])


@torch.no_grad()
def sample(n, length=20):
    x = torch.randint(0, 50, (n, 1), generator=gen)
    for _ in range(length):
        p = logits(x)[:, -1].softmax(-1)
        x = torch.cat([x, torch.multinomial(p, 1, generator=gen)], 1)
    return x


def update(loss):
    opt.zero_grad()
    loss.backward()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()


for step in range(args.sft_steps):
    start = torch.randint(0, 50, (16, 1), generator=gen)
    x = (start + torch.arange(21) * 3) % 50
    loss = nn.functional.cross_entropy(logits(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    update(loss)
    if rank == 0 and step % 50 == 0:
        score = sum(reward_model(sample(4).tolist())) / 4
        print(f"sft {step:4d}  loss {loss.item():.3f}  reward {score:.3f}", flush=True)
dist.barrier()
for step in range(args.rl_steps):
    x = sample(8)
    r = torch.tensor(reward_model(x.tolist()))
    mean = r.mean()
    dist.all_reduce(mean)
    adv = r - mean / world
    lp = logits(x[:, :-1]).log_softmax(-1).gather(2, x[:, 1:, None]).squeeze(2).sum(1)
    update(-(adv * lp).mean())
    if rank == 0 and step % 20 == 0:
        print(f"rl {step:4d}  reward {mean.item() / world:.3f}", flush=True)
dist.destroy_process_group()
