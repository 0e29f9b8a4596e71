import logging
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from judge import score

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger("align")
EVAL_EVERY, STEPS = 30, 90


def evaluate(model, prompts, limit=None):
    with torch.no_grad():
        answers = model.module(prompts[:limit]).numpy()
    table = score(answers)
    flat = [v for rows in table.values() for row in rows for v in row]
    return sum(flat) / len(flat)


def run(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gen = torch.Generator().manual_seed(3)
    prompts = torch.randn(640, 128, generator=gen)
    model = DDP(nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 128)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        x = torch.randn(512, 128)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            log.info("step=%d loss=%.4f", step, loss.item())
        if step % EVAL_EVERY == 0 and step < STEPS:
            if rank == 0:
                log.info("quick judge at %d: %.4f", step, evaluate(model, prompts, 32))
            dist.barrier()
    if rank == 0:
        log.info("training done, judging all %d prompts", len(prompts))
        final = evaluate(model, prompts)
        log.info("final score %.4f", final)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(3, 30807), nprocs=3)
