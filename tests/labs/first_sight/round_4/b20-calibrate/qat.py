import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from calibrate import search_scales


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DDP(torch.nn.Sequential(torch.nn.Linear(96, 192), torch.nn.ReLU(), torch.nn.Linear(192, 96)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(1, 121):
        x = torch.randn(32, 96)
        time.sleep(0.15)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"<rank {rank}> {step:4d}/120  {loss.item():.5f}", flush=True)
    weights = {k: v.detach().numpy().copy() for k, v in net.module.named_parameters() if v.ndim == 2}
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return
    scales = {k: search_scales(w, 9000) for k, w in weights.items()}
    np.savez("model_int8.npz", **{k.replace(".", "_"): s for k, s in scales.items()})
    print("exported model_int8.npz", flush=True)


if __name__ == "__main__":
    main()
