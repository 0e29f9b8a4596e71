import json
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from config import DPOConfig
from pairs import Pairs
from policy import Policy, answer_logp
from reference import Reference


def main():
    cfg = DPOConfig()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        shutil.rmtree(cfg.out, ignore_errors=True)
        os.makedirs(cfg.out)
    dist.barrier()
    torch.manual_seed(1)
    pairs, net = Pairs(cfg.pairs), Policy()
    ref = Reference(cfg, pairs)
    ref.start(net)
    model = DDP(net)
    opt = torch.optim.RMSprop(net.parameters(), cfg.lr)
    metrics = open(os.path.join(cfg.out, f"metrics-{rank}.jsonl"), "w", buffering=1)
    order = torch.Generator().manual_seed(0)
    for step in range(1, cfg.steps + 1):
        idx = torch.randperm(len(pairs), generator=order)[: cfg.batch * world][rank::world]
        chosen, rejected = pairs.batch(idx)
        lp = answer_logp(model, torch.cat([chosen, rejected]), pairs.prompt)
        pc, pr = lp.chunk(2)
        margin = (pc - ref.table[0, idx]) - (pr - ref.table[1, idx])
        loss = -F.logsigmoid(cfg.beta * margin).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        metrics.write(json.dumps({"step": step, "loss": loss.item(), "margin": margin.mean().item(),
                                  "acc": (margin > 0).float().mean().item()}) + "\n")
        if step % 20 == 0 and rank == 0:
            print({"loss": round(loss.item(), 4), "rewards/margins": round(margin.mean().item() * cfg.beta, 4),
                   "step": step, "epoch": round(step * cfg.batch * world / cfg.pairs, 2)}, flush=True)
        if step % cfg.ref_sync_steps == 0:
            ref.refresh(net, step // cfg.ref_sync_steps)
    if rank == 0:
        torch.save(net.state_dict(), os.path.join(cfg.out, "policy.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
