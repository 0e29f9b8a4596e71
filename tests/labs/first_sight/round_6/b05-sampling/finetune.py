import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
CHARS = "abcdefghijklmnopqrstuvwxyz .,\n"


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Conv1d(dim, dim, 5, padding=4)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.mix(self.norm(x).transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2)
        return x + self.mlp(h)


class CharModel(nn.Module):
    def __init__(self, dim=96, depth=3):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, len(CHARS))

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class SampleCallback:
    """Prints a few generated lines so that one sees whether the model learns."""

    def __init__(self, model, every, length=40):
        self.model, self.every, self.length = model, every, length

    @torch.no_grad()
    def generate(self, prompt):
        ids = [CHARS.index(c) for c in prompt]
        for _ in range(self.length):
            logits = self.model(torch.tensor([ids[-32:]]))
            ids.append(int(torch.multinomial(F.softmax(logits[0, -1], -1), 1)))
        return "".join(CHARS[i] for i in ids)

    def on_step_end(self, step):
        if step % self.every:
            return
        if dist.get_rank() == 0:
            self.model.eval()
            print("sample:", repr(self.generate("the ")), flush=True)
            self.model.train()
        dist.barrier()


def batches(rank, size=8, length=64):
    gen = torch.Generator().manual_seed(rank)
    text = ("the cat sat on the mat, and the dog ran. " * 300)
    data = torch.tensor([CHARS.index(c) for c in text])
    while True:
        at = torch.randint(0, len(data) - length - 1, (size,), generator=gen)
        time.sleep(0.1)
        yield torch.stack([data[i:i + length] for i in at]), torch.stack([data[i + 1:i + length + 1] for i in at])


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = CharModel()
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    callback = SampleCallback(model, every=60)
    start = time.time()
    for step, (x, y) in enumerate(batches(rank), 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0:
            sys.stdout.write(f"\r{step}/{steps} [{step / (time.time() - start):.2f} it/s] loss={loss.item():.3f}")
            sys.stdout.flush()
        callback.on_step_end(step)
        if step == steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
