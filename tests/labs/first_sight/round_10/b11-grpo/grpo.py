"""GRPO with the policy sharded by fully_shard; every rank generates for its own prompts."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from curriculum import stage_config
from generation import generate
from lm import TinyLM


def reward(ids, start):
    tail = ids[:, start:]
    even = ((tail % 2 == 0) & (tail > 1)).float().sum(1) / tail.ne(0).sum(1).clamp(min=1)
    return even - 0.002 * tail.ne(0).sum(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--group", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = TinyLM()
    with torch.no_grad():
        model.head.bias[1] += 1.5
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1000 + rank)
    for step in range(1, args.steps + 1):
        t0 = time.time()
        cfg = stage_config(step)
        prompts = torch.randint(2, 64, (1, 10)).repeat(args.group, 1)
        ids = generate(model, prompts, cfg)
        r = reward(ids, 10)
        stats = torch.tensor([r.mean().item(), float(ids.shape[1] - 10)])
        dist.all_reduce(stats)
        stats /= world
        adv = (r - r.mean()) / (r.std() + 1e-4)
        logits = model(ids)
        lp = F.log_softmax(logits[:, 9:-1], -1).gather(-1, ids[:, 10:, None]).squeeze(-1)
        mask = (ids[:, 10:] != 0).float()
        loss = -((lp * adv[:, None]) * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step:4d}  reward {stats[0]:+.3f}  len {stats[1]:.1f}  {time.time() - t0:.2f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
