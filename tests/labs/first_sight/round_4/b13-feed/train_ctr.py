import argparse
import json
import os
import time

import grpc
import torch
import torch.distributed as dist


class FeedClient:
    def __init__(self, endpoint):
        self.channel = grpc.insecure_channel(endpoint)
        self._next = self.channel.unary_unary("/feed.Feed/Next")

    def next_row(self):
        # wait_for_ready: trainers may be up before the feed is
        return json.loads(self._next(b"", wait_for_ready=True))


def make_batch(spec, n=64):
    g = torch.Generator().manual_seed(spec["seed"])
    x = torch.rand(n, 20, generator=g)
    return x, (x[:, 0] > x[:, 1]).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    feed = FeedClient(os.environ["FEED_ENDPOINT"])
    auc, begin = 0.0, time.time()
    for step in range(1, a.steps + 1):
        x, y = make_batch(feed.next_row())
        time.sleep(0.2)
        p = model(x).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(p, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        auc = 0.9 * auc + 0.1 * float(((p > 0) == (y > 0.5)).float().mean())
        if step % 20 == 0 and rank == 0:
            print(json.dumps(dict(step=step, logloss=round(loss.item(), 5), acc_ema=round(auc, 4),
                                  t=round(time.time() - begin, 1))), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
