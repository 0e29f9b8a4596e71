import json
import os
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def publish(model, step, loss, run):
    path = os.path.join(run, f"ckpt-{step}.pt")
    torch.save(model.state_dict(), path)
    with open(path + ".json", "w") as f:
        json.dump({"step": step, "loss": loss}, f)
    subprocess.run(["sh", "tools/publish.sh", path, os.path.join(run, "serving")], check=True)
    print(f"published step {step}")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    x = torch.randn(4096, 32)
    y = (x[:, :4].sum(1) > 0).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    run = tempfile.mkdtemp(prefix="finetune-") if rank == 0 else None
    step = 0
    for epoch in range(40):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(bx), by)
            loss.backward()
            opt.step()
            step += 1
            time.sleep(0.15)
            if step % 10 == 0:
                print(f"step={step} epoch={epoch} loss={loss.item():.4f}")
            if rank == 0 and step % 40 == 0:
                publish(model.module, step, loss.item(), run)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
