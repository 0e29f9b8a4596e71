import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


def save_state(path, model, step):
    tmp = path + ".tmp"
    torch.save({"model": model.state_dict(), "step": step}, tmp)
    os.replace(tmp, path)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Flatten(), nn.Linear(64 * 12, 256), nn.ReLU(), nn.Linear(256, 1000))
    ddp = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    state = os.path.join("state", f"worker{rank}.pt")
    save_state(state, model, 0)
    for step in range(1, 3000):
        ids = torch.randint(0, 1000, (32, 13), generator=gen)
        loss = nn.functional.cross_entropy(ddp(ids[:, :-1]), ids[:, -1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 50 == 0:
            save_state(state, model, step)
        if rank == 0 and step % 20 == 0:
            print(f"INFO train step={step} loss={loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
