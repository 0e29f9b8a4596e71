import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tqdm import tqdm

VOCAB, DIM, SEQ = 128, 64, 48
PREVIEW_EVERY = 80


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.att = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        h = self.n1(x)
        m = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        x = x + self.att(h, h, h, attn_mask=m, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tok(ids)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


@torch.no_grad()
def preview_completion(model, ids, new_tokens=12):
    model.eval()
    for _ in range(new_tokens):
        logits = model(ids[:, -SEQ:])
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    model.train()
    return ids[0].tolist()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    shard_mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = TinyLM()
    for b in model.blocks:
        fully_shard(b, mesh=shard_mesh)
    fully_shard(model, mesh=shard_mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctrl = dist.new_group(backend="gloo")

    gen = torch.Generator().manual_seed(rank)
    bar = tqdm(range(1, 601), disable=rank != 0, desc="sft", mininterval=2)
    for step in bar:
        time.sleep(0.12)
        ids = torch.randint(0, VOCAB, (4, SEQ + 1), generator=gen)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.3f}")
        if step % PREVIEW_EVERY == 0:
            if rank == 0:
                text = preview_completion(model, ids[:1, :8])
                bar.write(f"step {step}: {text}")
            dist.barrier(group=ctrl)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
