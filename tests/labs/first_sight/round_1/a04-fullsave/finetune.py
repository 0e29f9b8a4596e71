import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

VOCAB, D, LAYERS, SEQ = 512, 96, 3, 32
log = logging.getLogger("finetune")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.att = nn.MultiheadAttention(D, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.out = nn.Linear(D, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def is_main():
    return dist.get_rank() == 0


def gather_weights(model):
    out = {}
    for name, p in model.named_parameters():
        t = p.detach()
        out[name] = t.full_tensor() if isinstance(t, DTensor) else t
    return out


def save_checkpoint(model, step, folder="out"):
    if is_main():
        os.makedirs(folder, exist_ok=True)
        log.info("saving checkpoint-%d", step)
        torch.save(gather_weights(model), os.path.join(folder, f"checkpoint-{step}.pt"))
        log.info("saved checkpoint-%d", step)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if is_main() else logging.ERROR,
                        format="%(asctime)s | %(levelname)s | %(message)s")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = TinyLM()
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, 401):
        ids = torch.randint(0, VOCAB, (4, SEQ + 1), generator=g)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
        opt.zero_grad()
        time.sleep(0.05)
        if step % 50 == 0:
            log.info("step %d/400 loss %.3f", step, loss.item())
        if step % 80 == 0:
            save_checkpoint(model, step)
    save_checkpoint(model, 400)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
