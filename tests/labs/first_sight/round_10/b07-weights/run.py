"""Rank 0 learns from the replay and from fresh samples, rank 1 generates the fresh samples."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from replay import Replay
from weights import WeightServer, fetch


def make_model():
    return nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1))


def learner(args):
    model = make_model()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    replay, server = Replay(args.work + "/replay", 1), WeightServer()
    server.publish(model)
    dist.broadcast_object_list([server.url], src=0)
    fresh = torch.empty(64, 33)
    for rnd in range(1, args.rounds + 1):
        dist.recv(fresh, src=1)
        x, y = replay.sample()
        x, y = torch.cat([x, fresh[:, :32]]), torch.cat([y, fresh[:, 32:]])
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rnd % args.publish_every == 0:
            server.publish(model)
            dist.barrier()
        if rnd % 25 == 0:
            print(f"round {rnd}: loss {loss.item():.4f}, replay {replay.cursor} read", flush=True)
    dist.barrier()


def generator(args):
    model = make_model()
    box = [None]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(fetch(box[0]))
    gen = torch.Generator().manual_seed(2)
    for rnd in range(1, args.rounds + 1):
        x = torch.randn(64, 32, generator=gen)
        with torch.no_grad():
            y = model(x) * 0.9 + x[:, :1] * 0.1
        time.sleep(0.08)
        dist.send(torch.cat([x, y], 1), dst=0)
        if rnd % args.publish_every == 0:
            dist.barrier()
            model.load_state_dict(fetch(box[0]))
    dist.barrier()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", default="work")
    ap.add_argument("--rounds", type=int, default=2000)
    ap.add_argument("--publish-every", type=int, default=15)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    learner(a) if dist.get_rank() == 0 else generator(a)
    dist.destroy_process_group()
