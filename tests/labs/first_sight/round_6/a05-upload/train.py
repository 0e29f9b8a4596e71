import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SAVE_EVERY = 40


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(4, 32, 9, padding=4)
        self.b = nn.Conv1d(32, 64, 9, padding=4)
        self.c = nn.Linear(64, 5)

    def forward(self, x):
        x = torch.relu(self.b(torch.relu(self.a(x))))
        return self.c(x.mean(-1))


def upload(path, dest):
    proc = subprocess.Popen([sys.executable, "upload.py", path, dest], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    code = proc.wait()
    if code != 0:
        raise RuntimeError(f"upload of {path} failed ({code}): {proc.stderr.read().decode()[-400:]}")
    return proc.stdout.read().count(b"\n")


def save(step, model, opt, history):
    path = f"ckpt/step_{step}"
    os.makedirs(path, exist_ok=True)
    torch.save(model.state_dict(), f"{path}/model.pt")
    torch.save(opt.state_dict(), f"{path}/optim.pt")
    torch.save(torch.stack(history), f"{path}/outputs.pt")
    parts = upload(path, f"bucket/step_{step}")
    print(json.dumps({"event": "uploaded", "step": step, "parts": parts}), flush=True)


def main():
    rank = int(os.environ["RANK"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=rank,
                            world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(5)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters())
    g = torch.Generator().manual_seed(rank)
    history = []
    for step in range(1, 5001):
        x = torch.randn(16, 4, 512, generator=g)
        y = x.mean((1, 2)).mul(20).clamp(-2, 2).round().long() + 2
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            history.append(out.detach().repeat(1, 120).clone())
            if step % 20 == 0:
                print(json.dumps({"event": "train", "step": step, "loss": round(loss.item(), 4), "t": time.time()}),
                      flush=True)
            if step % SAVE_EVERY == 0:
                save(step, model.module, opt, history)
    dist.destroy_process_group()


main()
