import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Encoder
from suites import SuiteEvaluator


def batches(rank, vocab, size, length):
    g = torch.Generator().manual_seed(1000 + rank)
    while True:
        x = torch.randint(0, vocab, (size, length), generator=g)
        yield x, (x.sum(1) % 7)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--eval-every", type=int, default=40)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder(vocab=512, width=96, classes=7))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    evaluator = SuiteEvaluator(["cola", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli", "mnli",
                                "mnli-mm", "boolq", "copa"])
    stream = batches(rank, 512, 16, 48)
    t0 = time.time()
    for step in range(1, args.steps + 1):
        x, y = next(stream)
        time.sleep(0.1)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:4d} | loss {loss.item():.4f} | {step / (time.time() - t0):.1f} it/s", flush=True)
        if step % args.eval_every == 0:
            table = evaluator.run(model.module)
            if rank == 0:
                print("eval @%d  " % step + "  ".join(f"{k}={v:.3f}" for k, v in sorted(table.items())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
