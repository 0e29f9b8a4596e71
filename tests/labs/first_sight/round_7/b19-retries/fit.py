import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.elastic.multiprocessing.errors import record

from storage import Bucket

CKPT = os.path.join(os.environ["SCRATCH_DIR"], "last.pt")


@record
def main():
    rank = int(os.environ["RANK"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt:
        time.sleep(10 * attempt)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    first = 1
    if os.path.exists(CKPT):
        blob = torch.load(CKPT, weights_only=True)
        net.load_state_dict(blob["net"])
        first = blob["step"] + 1
    agreed = torch.tensor([first])
    dist.broadcast(agreed, 0)
    model = DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    bucket = Bucket(rank)
    for step in range(int(agreed), 201):
        x, y = bucket.read(step)
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.04)
        if step % 20 == 0:
            if rank == 0:
                torch.save({"net": net.state_dict(), "step": step}, CKPT + ".new")
                os.replace(CKPT + ".new", CKPT)
                print(f"try {attempt} step {step} mse {loss.item():.4f}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
