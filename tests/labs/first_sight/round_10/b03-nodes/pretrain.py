import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dataset import Windows, open_tokens


class GPT(nn.Module):
    def __init__(self, c, vocab=1000):
        super().__init__()
        self.tok = nn.Embedding(vocab, c["dim"])
        self.pos = nn.Parameter(torch.zeros(c["seq"], c["dim"]))
        layer = nn.TransformerEncoderLayer(c["dim"], c["heads"], 4 * c["dim"], 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, c["layers"], enable_nested_tensor=False)
        self.head = nn.Linear(c["dim"], vocab, bias=False)

    def forward(self, x):
        m = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.blocks(self.tok(x) + self.pos, mask=m, is_causal=True))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", required=True)
    cfg = json.load(open(ap.parse_args().config))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    print(f"rank {rank} of {world} is up", flush=True)
    tokens = open_tokens(os.environ["SCRATCH"])
    data = Windows(tokens, cfg["seq"])
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=1)
    loader = DataLoader(data, cfg["batch"], sampler=sampler, drop_last=True)
    model = DDP(GPT(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg["steps"])
    step, epoch, t0 = 0, 0, time.time()
    while step < cfg["steps"]:
        sampler.set_epoch(epoch)
        for chunk in loader:
            logits = model(chunk[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            step += 1
            if step % cfg["log_every"] == 0 and rank == 0:
                print(f"step {step:5d} loss {loss.item():.3f} {step / (time.time() - t0):.1f} it/s", flush=True)
            if step % cfg["save_every"] == 0 and rank == 0:
                torch.save(model.module.state_dict(), "last.pt")
            if step >= cfg["steps"]:
                break
        epoch += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
