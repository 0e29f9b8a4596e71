import argparse
import datetime

import torch
import torch.distributed as dist
import torch.multiprocessing as tmp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from records import Recorder


def synth(n, gen, site):
    """Two sites measure the same thing; site 1 rarely sees a positive."""
    x = torch.randn(n, 24, generator=gen)
    logit = x[:, :4].sum(1) * 1.5 - (0.0 if site == 0 else 2.0)
    y = (torch.rand(n, generator=gen) < logit.sigmoid()).float()
    return x, y


def auc(score, y):
    pos, neg = score[y == 1], score[y == 0]
    wins = (pos[:, None] > neg[None, :]).float().sum()
    return (wins / (len(pos) * len(neg))).item()


def now():
    return datetime.datetime.now().strftime("%H:%M:%S")


def worker(rank, args):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{args.port}",
                            rank=rank, world_size=args.world)
    torch.set_num_threads(1)
    torch.manual_seed(5)
    gen = torch.Generator().manual_seed(50 + rank)
    net = DDP(nn.Sequential(nn.Linear(24, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
                            nn.Linear(200, 1)))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    rec = Recorder("records") if rank == 0 else None
    for step in range(1, args.steps + 1):
        x, y = synth(48, gen, rank)
        out = net(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.eval_every == 0:
            # a small hold-out of each site, scored where the recorder is
            vx, vy = synth(12, gen, rank)
            with torch.no_grad():
                vs = net.module(vx).squeeze(1)
            pairs = [torch.empty(2, 12) for _ in range(args.world)]
            dist.all_gather(pairs, torch.stack([vs, vy]))
            if rank == 0:
                per_site = [auc(p[0], p[1]) for p in pairs]
                rec.score(step=step, loss=loss.item(), auc=per_site)
                rec.predictions(step, torch.cat([p[0] for p in pairs]).tolist() * 8)
        if rank == 0 and step % 500 == 0:
            print(f"{now()} step {step}/{args.steps} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if rank == 0:
        torch.save(net.module.state_dict(), "final.pt")
        print(f"{now()} saved final.pt", flush=True)
        rec.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=2)
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--eval-every", type=int, default=25)
    ap.add_argument("--port", type=int, default=31307)
    a = ap.parse_args()
    tmp.spawn(worker, args=(a,), nprocs=a.world)
    print("all done", flush=True)
