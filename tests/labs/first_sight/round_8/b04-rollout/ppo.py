import json
import os
import random
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

URL = os.environ["ROLLOUT_URL"]


def rollout(prompts, n=2):
    req = urllib.request.Request(URL + "/generate", json.dumps({"prompts": prompts, "n": n}).encode(),
                                 {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(req) as r:
            return json.load(r)["completions"]
    except urllib.error.HTTPError as e:
        e.read()
        return []          # too long for the engine: this group is left out


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(500, 128)
        self.net = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 1))

    def forward(self, ids):
        return self.net(self.emb(ids)).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    rng = random.Random(40)
    actor = DDP(Actor())
    opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    bar = 0
    for it in range(250):
        prompts = [[rng.randrange(500) for _ in range(int(rng.gauss(52, 17)) + 12)] for _ in range(4)]
        box = [rollout(prompts) if rank == 0 else None]
        dist.broadcast_object_list(box)
        texts = box[0][rank::2]
        ids = torch.tensor(texts or [[0] * 24])
        reward = (ids % 7 == 0).float().mean(1)
        adv = (reward - reward.mean()) * (1.0 if texts else 0.0)
        loss = -(adv * actor(ids)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            bar = int(30 * (it + 1) / 250)
            print(f"\rPPO |{'#' * bar}{'.' * (30 - bar)}| {it + 1}/250 reward={reward.mean():.3f}", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
