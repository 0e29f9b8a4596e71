import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NODE = os.environ["NODE"]
RANK = int(os.environ["RANK"])


def stage(folder, megabytes=12):
    """Copies the shard at the speed of the node's link."""
    link = int(os.environ["LINK_KBPS"]) * 1024
    path = os.path.join(folder, "shard.bin")
    block = os.urandom(64 * 1024)
    with open(path, "wb") as f:
        for _ in range(megabytes * 16):
            f.write(block)
            time.sleep(len(block) / link)
    return path


def main():
    with tempfile.TemporaryDirectory() as scratch:
        path = stage(scratch)
        print(f"{NODE}: staged {os.path.getsize(path) >> 20} MB", flush=True)
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 8)))
        opt = torch.optim.SGD(model.parameters(), 0.01)
        with open(path, "rb") as f:
            for step in range(300):
                x = torch.frombuffer(bytearray(f.read(16 * 1024)), dtype=torch.uint8).view(16, 1024).float() / 255
                loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 8)
                opt.zero_grad()
                loss.backward()
                opt.step()
                time.sleep(0.05)
                if step % 50 == 0:
                    print(f"{NODE}: step {step} loss {loss.item():.4f}", flush=True)
        dist.barrier()
        dist.destroy_process_group()


main()
