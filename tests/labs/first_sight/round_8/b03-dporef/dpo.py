import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from pairs import Pairs
from sharded import ShardedScorer

VOCAB, DIM, WORLD, EPOCHS, BETA = 600, 96, 3, 4, 0.1


class Reference:
    """Log-probabilities of the frozen model; a pair is scored once."""

    def __init__(self, model):
        self.model, self.known = model, {}

    @torch.no_grad()
    def __call__(self, ids, chosen, rejected):
        if any(i not in self.known for i in ids):
            c, r = self.model(chosen), self.model(rejected)
            self.known.update({i: (c[k], r[k]) for k, i in enumerate(ids)})
        got = [self.known[i] for i in ids]
        return torch.stack([g[0] for g in got]), torch.stack([g[1] for g in got])


def work(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:30803", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    everyone = list(range(WORLD))
    policy = ShardedScorer(VOCAB, DIM, dist.new_group(everyone), seed=1)
    reference = Reference(ShardedScorer(VOCAB, DIM, dist.new_group(everyone), seed=1).requires_grad_(False))
    opt = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
    data, step = Pairs(180, VOCAB), 0
    for epoch in range(EPOCHS):
        for ids, chosen, rejected in data.epoch(epoch, rank, WORLD, 1):
            ref_c, ref_r = reference(ids, chosen, rejected)
            pi_c, pi_r = policy(chosen), policy(rejected)
            margin = (pi_c - ref_c) - (pi_r - ref_r)
            loss = -F.logsigmoid(BETA * margin).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                print(f"[rank{rank}] epoch {epoch} step {step} loss {loss.item():.4f} "
                      f"rewards/margins {BETA * margin.mean().item():+.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, nprocs=WORLD)
