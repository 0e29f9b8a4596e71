import multiprocessing
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from engine import Engine, _policy
from prompts import Prompts


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = DDP(_policy())
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    engine, prompts = Engine(seed=rank), Prompts(rank)

    # one step off policy: samples are made with the weights of the step before
    asked = prompts.next(0)
    engine.generate(asked)
    for step in range(1, 400):
        batch = engine.take(len(asked))
        good = prompts.useful(batch) or batch[:1]
        asked = prompts.next(step)
        engine.generate(asked)

        obs = torch.tensor([s[1] for s in good])
        act = torch.tensor([s[2] for s in good])
        rew = torch.tensor([s[3] for s in good])
        adv = rew - rew.mean(1, keepdim=True)
        logp = policy(obs).log_softmax(-1)
        loss = -(logp[:, None, :].expand(-1, 8, -1).gather(2, act[..., None])[..., 0] * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        engine.update_weights(policy.module.state_dict())
        stats = torch.tensor([rew.mean().item(), float(len(asked))])
        dist.all_reduce(stats)
        if rank == 0 and step % 5 == 0:
            print(f"{time.strftime('%H:%M:%S')} step {step} reward {stats[0] / 2:.3f} prompts {int(stats[1])}", flush=True)
    engine.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
