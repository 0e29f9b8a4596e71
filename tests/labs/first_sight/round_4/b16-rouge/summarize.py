import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from rouge_l import rouge_l

EVAL_DOCS = 280


def evaluate(net, step):
    rng = random.Random(step)
    scores = []
    for _ in range(EVAL_DOCS):
        ref = [rng.randrange(200) for _ in range(900)]
        hyp = [t if rng.random() < 0.4 else rng.randrange(200) for t in ref][:rng.randrange(600, 900)]
        scores.append(rouge_l(hyp, ref))
    return sum(scores) / len(scores)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(torch.nn.Linear(64, 64))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, 161):
        x = torch.randn(16, 64)
        time.sleep(0.15)
        loss = (net(x) - x.flip(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 100:
            if rank == 0:
                score = evaluate(net.module, step)
                print(f"step {step} rougeL {score:.4f}", flush=True)
            dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
