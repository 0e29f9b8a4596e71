import json
import os
import sys
import time

import torch
import torch.distributed as dist

from rollout import Policy, generate, VOCAB

LIMIT = 24


def load_prompts(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def batch_for(prompts, it, rank, world, size=4):
    start = (it * world + rank) * size
    rows = [prompts[(start + i) % len(prompts)] for i in range(size)]
    return {
        "tokens": torch.tensor([[(ord(c) % (VOCAB - 1)) + 1 for c in r["prompt"][:12].ljust(12)] for r in rows]),
        "wants": torch.tensor([r["answer_words"] for r in rows]),
    }


def reward(answer):
    return float(len(set(answer))) / (len(answer) or 1)


def update(policy, mean_reward, generator):
    for layer, w in policy.local_weights():
        w.add_(torch.randn(w.shape, generator=generator), alpha=1e-3 * (1 - mean_reward))


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    prompts = load_prompts("prompts.jsonl")
    policy = Policy()
    gen = torch.Generator().manual_seed(rank)
    out = open("rollouts.jsonl", "w") if rank == 0 else None
    for it in range(400):
        t0 = time.time()
        batch = batch_for(prompts, it, rank, world)
        answers = generate(policy, batch, LIMIT, gen).tolist()
        time.sleep(0.6)  # the reward model's answer
        texts = [None] * world
        dist.all_gather_object(texts, answers)
        rewards = [reward([t for t in a if t]) for part in texts for a in part]
        mean = sum(rewards) / len(rewards)
        update(policy, mean, gen)
        if rank == 0:
            out.write(json.dumps({"it": it, "reward": mean, "lengths": [len(a) for p in texts for a in p]}) + "\n")
            out.flush()
            sys.stdout.write(f"\riter {it + 1}/400 reward {mean:.3f} {time.time() - t0:.2f}s/it")
            sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
