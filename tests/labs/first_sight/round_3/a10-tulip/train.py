import copy
import time

import torch
import torch.distributed as dist
from torch import nn

from saver import Saver


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(900, 96), nn.Linear(96, 12))
    ddp = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adam(ddp.parameters(), 3e-3)
    saver = Saver("out") if rank == 0 else None
    trace = []
    t0 = time.time()
    for step in range(1, 1001):
        x, y = torch.randint(0, 900, (32, 12)), torch.randint(0, 12, (32,))
        loss = nn.functional.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.3)
        if saver and step % 8 == 0:
            trace.append(model[0].weight.detach().clone())
            saver.save(step, {"step": step, "model": copy.deepcopy(model.state_dict()), "trace": list(trace)})
        if rank == 1 and step % 10 == 0:
            print(f"{step:5d} {loss.item():8.4f} {(time.time() - t0) / step:6.2f} s/it", flush=True)


if __name__ == "__main__":
    main()
