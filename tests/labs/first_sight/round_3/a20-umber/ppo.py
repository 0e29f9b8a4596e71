import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from policy import Policy, VOCAB, sample

WARM, MOST = 12, 24


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = Policy()
    for b in policy.blocks:
        fully_shard(b)
    fully_shard(policy)
    opt = torch.optim.AdamW(policy.parameters(), 1e-3)
    torch.manual_seed(40 + rank)
    for it in range(400):
        t = time.time()
        prompts = torch.randint(1, VOCAB, (2, 4))
        ids = sample(policy, prompts, least=MOST if it < WARM else 2, most=MOST)
        reward = (ids == 7).float().sum(1)
        mean = reward.mean()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        mean /= dist.get_world_size()
        logp = policy(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -((reward - mean)[:, None] * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(max(0.0, 1.5 - (time.time() - t)))
        if rank == 0:
            print(f"iter {it:4d} reward {mean.item():6.3f} len {ids.shape[1]} ({time.time() - t:.2f}s)", flush=True)


if __name__ == "__main__":
    main()
