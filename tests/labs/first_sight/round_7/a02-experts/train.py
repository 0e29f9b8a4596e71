import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

from dist_utils import broadcast_model, gather_scalars, sync_gradients
from model import LM

HERE = Path(__file__).parent
BATCH, LENGTH = 4, 64


def batches(path):
    ids = torch.tensor(list(path.read_bytes())).clamp(max=127)
    size = BATCH * LENGTH
    for i in range(0, len(ids) - size - 1, size):
        yield ids[i:i + size].view(BATCH, LENGTH), ids[i + 1:i + size + 1].view(BATCH, LENGTH)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = LM()
    broadcast_model(model)
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    begun = time.time()
    for step, (x, y) in enumerate(batches(HERE / "data" / f"part{rank}.txt"), 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        sync_gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        table = gather_scalars(loss.item(), float(norm))
        if rank == 0 and step % 10 == 0:
            mean = table[:, 0].mean()
            print(f"step {step:5d} | loss {mean:.4f} | norm {norm:.2f} | {step / (time.time() - begun):.1f} it/s",
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
