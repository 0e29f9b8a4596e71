import io
import logging
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from uploads import Bucket, Uploads

log = logging.getLogger("train")


def snapshot(net, opt):
    buf = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, buf)
    return buf.getvalue()


def rollouts(policy, n, gen):
    state = torch.randn(n, 12, generator=gen)
    logits = policy(state)
    probs = torch.softmax(logits.detach(), -1)
    action = torch.multinomial(probs, 1, generator=gen).squeeze(1)
    reward = (state[:, :4].argmax(1) == action).float()
    return logits, action, reward


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(asctime)s %(name)s: %(message)s")
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(12, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))
    opt = torch.optim.Adam(policy.parameters(), 1e-3)
    uploads = None
    if rank == 0:
        uploads = Uploads(Bucket(tempfile.mkdtemp(prefix="bucket-"), quota=1_500_000))
    gen = torch.Generator().manual_seed(40 + rank)
    baseline = 0.25
    for it in range(1, 2001):
        logits, action, reward = rollouts(policy, 128, gen)
        logp = torch.log_softmax(logits, -1).gather(1, action[:, None]).squeeze(1)
        loss = -((reward - baseline) * logp).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        stat = reward.mean().reshape(1)
        dist.all_reduce(stat)
        baseline += 0.05 * (stat.item() / world - baseline)
        if rank == 0 and it % 50 == 0:
            log.info("iteration %d reward %.3f", it, baseline)
        if uploads and it % 30 == 0:
            uploads.submit(f"policy-{it:05d}.pt", snapshot(policy, opt))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
