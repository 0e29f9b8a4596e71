import glob
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OUT = "ckpt"
STEPS, EVERY = 400, 25


class Folder:
    """One writer at a time in a folder: the holder's mark is a file."""

    def __init__(self, path):
        self.mark = os.path.join(path, ".writing")

    def __enter__(self):
        while True:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                return self
            except FileExistsError:
                time.sleep(0.5)

    def __exit__(self, *exc):
        os.unlink(self.mark)


def save(step, model, opt):
    with Folder(OUT):
        for name, state in (("model", model.module.state_dict()), ("opt", opt.state_dict())):
            with open(f"{OUT}/{step:05d}.{name}.tmp", "wb") as f:
                torch.save(state, f)
                f.flush()
                os.fsync(f.fileno())
            time.sleep(6)  # the store wants some time between two uploads
            os.replace(f"{OUT}/{step:05d}.{name}.tmp", f"{OUT}/{step:05d}.{name}")
        with open(f"{OUT}/latest", "w") as f:
            f.write(f"{step:05d}")


def resume(model, opt):
    if not os.path.exists(f"{OUT}/latest"):
        return 0
    step = open(f"{OUT}/latest").read()
    model.module.load_state_dict(torch.load(f"{OUT}/{step}.model"))
    opt.load_state_dict(torch.load(f"{OUT}/{step}.opt"))
    return int(step)


def hard_examples(step):
    """Indexes of hard examples, mined from step 50 on. A new index is used from the next start."""
    path = f"{OUT}/hard.json"
    if os.path.exists(path):
        return json.load(open(path))
    if step < 50:
        return []
    with open(path, "w") as f:
        json.dump(list(range(0, 1000, 13)), f)
    raise RuntimeError("index of hard examples was rebuilt, start again to use it")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(OUT, exist_ok=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters())
    start = resume(model, opt)
    if rank == 0:
        print(f"attempt {os.environ['ATTEMPT']}: from step {start},"
              f" {len(glob.glob(OUT + '/*.model'))} checkpoints", flush=True)
    for step in range(start + 1, STEPS + 1):
        gen = torch.Generator().manual_seed(step * 10 + rank)
        x = torch.randn(64, 32, generator=gen)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % EVERY == 0:
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
                save(step, model, opt)
            elif rank == 1:
                hard_examples(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
